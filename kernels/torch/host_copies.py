"""Times pinned copies between GPUs of one node and their host, some GPUs at once: what their CPU's memory takes and gives.

    torchrun --standalone --nproc-per-node N kernels/torch/host_copies.py > copies.jsonl

A process a GPU. Each copies 32 times 256 MiB, eight buffers in turn, to the host, from it, and both ways at once, on a
stream each way: first one GPU, then two, then all. A JSON line each: gb_s has what each GPU reached to the host and from
it in the second of two such series, by CUDA events around it."""

import json
import os

import torch
import torch.distributed as dist

BYTES, BUFFERS, SERIES = 256 << 20, 8, 4

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("gloo")
world = dist.get_world_size()
ways = []
for way in range(2):
    host = [torch.full((BYTES,), rank + 1, dtype=torch.uint8).pin_memory() for _ in range(BUFFERS)]
    device = [torch.randint(0, 255, (BYTES,), dtype=torch.uint8, device="cuda") for _ in range(BUFFERS)]
    ways.append((torch.cuda.Stream(), *((host, device) if way == 0 else (device, host))))


def rates(active, chosen):
    """GB/s of this GPU, each way."""
    torch.cuda.synchronize()
    dist.barrier()
    events = {}
    for way in chosen if rank in active else []:
        stream, to, source = ways[way]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            begin.record()
            for i in range(SERIES * BUFFERS):
                to[i % BUFFERS].copy_(source[i % BUFFERS], non_blocking=True)
            end.record()
        events[way] = begin, end
    torch.cuda.synchronize()
    dist.barrier()
    size = 1e-9 * SERIES * BUFFERS * BYTES
    return [round(size / (1e-3 * events[way][0].elapsed_time(events[way][1])), 2) if way in events else 0 for way in (0, 1)]


pairs = [[i, j] for i, j in ((0, 1), (0, 2), (2, 3)) if j < world]
for active in [[0], [1], *pairs, list(range(world))]:
    for chosen in ([0], [1], [0, 1]):
        for _ in range(2):
            gathered = [None] * world
            dist.all_gather_object(gathered, rates(active, chosen))
        if rank == 0:
            record = dict(device=torch.cuda.get_device_name(), gpus=active, ways=["to_host", "from_host"],
                          gb_s=[gathered[i] for i in active], bytes=BYTES, torch=torch.__version__)
            print(json.dumps(record), flush=True)
