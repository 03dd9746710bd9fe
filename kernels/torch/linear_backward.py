"""Times the backward of a column-parallel linear with sequence parallelism as Transformer Engine runs it without user
buffers: the input is gathered beside dgrad, the input's gradient reduce-scattered beside wgrad (both asynchronous, on
NCCL's stream; transformer_engine/pytorch/module/linear.py). A JSON line a setting and way, with every sample in us, of the
slowest rank: the four parts alone, one after the other ("sequence"), as above ("beside"), and that captured in a CUDA
graph ("graph"). BF16; wgrad is not added to FP32. The first product is checked against float64.

    torchrun --nproc-per-node 4 kernels/torch/linear_backward.py > h100-x4-linear-backward.jsonl

CUDA_DEVICE_MAX_CONNECTIONS, which Megatron wants to be 1, is taken as it is set and written down.
"""

import json
import os

import torch
import torch.distributed as dist

BF16, SAMPLES, TURNS = torch.bfloat16, 8, 10
LINEARS = ((4096, 6144), (4096, 9216), (4096, 28672), (5120, 7168), (5120, 55296), (8192, 10240), (8192, 57344),
           (16384, 106496))  # In, out.
ROWS = (4096, 8192, 32768)  # 32768 for the smaller inputs only: products of more than 20 ms hide no more.

dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
HEAD = {"schema": 1, "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())), "kernel": "linear_backward",
        "connections": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "")}


def sample(run):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    dist.barrier()
    torch.cuda._sleep(4_000_000)  # The host runs ahead.
    begin.record()
    for turn in range(TURNS):
        run(turn % 2)
    end.record()
    torch.cuda.synchronize()
    us = torch.tensor(begin.elapsed_time(end) * 1e3 / TURNS, device="cuda")
    dist.all_reduce(us, op=dist.ReduceOp.MAX)
    torch.cuda._sleep(20_000_000)  # Cool.
    return round(us.item(), 2)


def line(of, run):
    sample(run)
    us = [sample(run) for _ in range(SAMPLES)]
    if dist.get_rank() == 0:
        print(json.dumps({**HEAD, **of, "us": us}), flush=True)


def setting(tp, group, rows, k, n):
    shapes = {"part": (rows // tp, k), "x": (rows, k), "w": (n, k), "dy": (rows, n), "dx": (rows, k), "back": (rows // tp, k),
              "dw": (n, k)}
    t = [{name: torch.randn(*shape, device="cuda").to(BF16) for name, shape in shapes.items()} for _ in range(2)]

    def gather(i, beside=False):
        return dist.all_gather_into_tensor(t[i]["x"], t[i]["part"], group=group, async_op=beside)

    def scatter(i, beside=False):
        return dist.reduce_scatter_tensor(t[i]["back"], t[i]["dx"], group=group, async_op=beside)

    def dgrad(i):
        torch.mm(t[i]["dy"], t[i]["w"], out=t[i]["dx"])

    def wgrad(i):
        torch.mm(t[i]["dy"].t(), t[i]["x"], out=t[i]["dw"])

    def sequence(i):
        gather(i), dgrad(i), scatter(i), wgrad(i)

    def beside(i):
        gathered = gather(i, True)
        dgrad(i)
        scattered = scatter(i, True)
        gathered.wait()
        wgrad(i)
        scattered.wait()

    of = {"tp": tp, "rows": rows, "k": k, "n": n}
    for way in (gather, scatter, dgrad, wgrad, sequence, beside):
        line({**of, "way": {"gather": "all_gather", "scatter": "reduce_scatter"}.get(way.__name__, way.__name__)}, way)
    graphs = []
    for i in range(2):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[i]):
            beside(i)
    line({**of, "way": "graph"}, lambda i: graphs[i].replay())


def check():
    x, w = torch.randn(256, 512, device="cuda").to(BF16), torch.randn(384, 512, device="cuda").to(BF16)
    exact = x.double() @ w.double().t()
    error = ((x @ w.t()).double() - exact).abs().max() / exact.abs().max()
    if error > 0.01:
        raise SystemExit(f"wrong: off by {error}")


check()
world = dist.get_world_size()
for tp in (2, 4):
    if world % tp:
        continue
    groups = [dist.new_group(list(range(first, first + tp))) for first in range(0, world, tp)]
    for rows in ROWS:
        for k, n in LINEARS:
            if rows * k > 32768 * 5120:
                continue
            setting(tp, groups[dist.get_rank() // tp], rows, k, n // tp)
dist.destroy_process_group()
