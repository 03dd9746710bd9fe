"""Measures what work draws and what the power limit takes of its rate: products, attention and memory-bound kernels
without a pause, and products that take turns with copies or idle time. One JSON line per workload, with NVML's samples
(every 15 ms: time in s, energy in mJ, SM clock in MHz, reasons of lower clocks) and when each batch of work ended (ms).
Needs one GPU, PyTorch and two minutes. `gpus` measures how the GPUs of a machine differ: products that never pause, on
all of them at once; a line a GPU with, of each half second or so, TFLOPS, SM clock, W and degrees. `collectives` measures
NCCL's collectives of two GPUs alone, in turns with products and beside them; a line a workload and GPU. `products`
compares the rates of products after a pause and without pauses, by shape; a line a shape and GPU.

`watch` prints time, SM clock in MHz and W at that moment, every 10 ms, until it is stopped: beside megatron_steps.py it
tells what the GPU does in a run's steps, which are the stretch of that length with the highest mean. h100_power_steps.jsonl
has every fourth sample of that stretch (`sampled`) beside each run, and `steps` prints them.

    python3 kernels/torch/power.py measure > h100_power.jsonl
    python3 kernels/torch/power.py gpus >> gpus_power.jsonl
    torchrun --nproc-per-node 2 kernels/torch/power.py collectives > h200x2_collectives_power.jsonl
    torchrun --nproc-per-node 2 kernels/torch/power.py products > h200x2_hot_products.jsonl
    python3 kernels/torch/power.py table benchmarks/accuracy/records/h100_power.jsonl.xz   (benchmarks/accuracy/journal.md#power)
    python3 kernels/torch/power.py steps hwprofiles/data/kernels/h100_power_steps.jsonl
"""

import ctypes
import json
import lzma
import statistics
import sys
import threading
import time

SECONDS, PAUSE, SAMPLE = 1.8, 0.5, 0.015


class Meter:
    """NVML's counters of a GPU, sampled by a thread."""

    def __init__(self, index=0, watch=True):
        self.nvml, self.device, self.samples = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), []
        self.nvml.nvmlInit_v2()
        self.nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self.device))
        if watch:
            threading.Thread(target=self.watch, daemon=True).start()

    def read(self, name, kind, *arguments):
        value = kind()
        if getattr(self.nvml, name)(self.device, *arguments, ctypes.byref(value)):
            raise SystemExit(f"{name} failed")
        return value.value

    def watch(self):
        while True:
            self.samples.append((time.perf_counter(), self.read("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong),
                                 self.read("nvmlDeviceGetClockInfo", ctypes.c_uint, 1),
                                 self.read("nvmlDeviceGetCurrentClocksEventReasons", ctypes.c_ulonglong)))
            time.sleep(SAMPLE)


def event():
    """An event of the current stream, from now on."""
    import torch

    result = torch.cuda.Event(enable_timing=True)
    result.record()
    return result


def measure():
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    meter, bf16, functional = Meter(), torch.bfloat16, torch.nn.functional
    head = {"schema": 1, "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}

    def record(what, batch, flops=0.0, moved=0.0, stretches=None, **more):
        """batch() enqueues 10 ms of work or more; two batches are always queued. FLOPs and bytes are those of a batch."""
        for _ in range(2):
            batch()
        torch.cuda.synchronize()
        time.sleep(PAUSE)
        if stretches is not None:
            stretches.clear()
        start, first, ends = time.perf_counter(), event(), []
        while time.perf_counter() - start < SECONDS:
            batch()
            ends.append(event())
            if len(ends) > 2:
                ends[-3].synchronize()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        samples = [[round(at - start, 4), *rest] for at, *rest in meter.samples if start <= at <= start + seconds]
        line = {**head, "what": what, "flops": flops, "bytes": moved, "seconds": round(seconds, 4),
                "ends_ms": [round(first.elapsed_time(end), 3) for end in ends], "samples": samples, **more}
        if stretches is not None:
            line["products_ms"] = [round(a.elapsed_time(b), 4) for a, b in stretches]
        print(json.dumps(line), flush=True)

    def random(*shape, dtype=bf16):
        return torch.randn(*shape, device="cuda").to(dtype)

    def gemm(m, n, k, dtype=bf16, make=random):
        count = max(1, int(0.02 / (2.0 * m * n * k / (6e14 if dtype == bf16 else 1.1e15))))
        flops, moved = count * 2.0 * m * n * k, count * (dtype.itemsize * (m * k + k * n) + 2.0 * m * n)
        if dtype == bf16:
            a, b, out = make(m, k), make(k, n), make(m, n)
            return lambda: [torch.mm(a, b, out=out) for _ in range(count)], flops, moved
        a, b, one = random(m, k, dtype=dtype), random(n, k, dtype=dtype).t(), torch.ones((), device="cuda")
        return lambda: [torch._scaled_mm(a, b, one, one, out_dtype=bf16, use_fast_accum=True) for _ in range(count)], flops, moved

    def graph(run, count):
        run()
        torch.cuda.synchronize()
        result = torch.cuda.CUDAGraph()
        with torch.cuda.graph(result):
            for _ in range(count):
                run()
        return result

    record("idle", lambda: time.sleep(0.02))
    for shape in ((8192,) * 3, (4096,) * 3, (2048,) * 3, (8192, 8192, 128), (8192, 8192, 256), (8192, 8192, 512),
                  (8192, 8192, 1024), (8192, 8192, 2048)):
        record("gemm bf16 {}x{}x{}".format(*shape), *gemm(*shape))
    zeros = lambda *shape: torch.zeros(*shape, device="cuda", dtype=bf16)
    record("gemm bf16 8192x8192x8192 of zeros", *gemm(8192, 8192, 8192, make=zeros))
    for shape in ((8192,) * 3, (4096,) * 3, (8192, 8192, 512), (8192, 8192, 2048)):
        record("gemm fp8 {}x{}x{}".format(*shape), *gemm(*shape, dtype=torch.float8_e4m3fn))
    small = [random(1024, 1024) for _ in range(3)]
    replay = graph(lambda: torch.mm(small[0], small[1], out=small[2]), 400)
    record("gemm bf16 1024x1024x1024 in a graph", lambda: [replay.replay() for _ in range(10)], 4000 * 2 * 1024.0**3)

    x, y = random(2**29), random(2**29)
    size = 2.0 * x.numel()
    for what, run, moved in (("copy", lambda: y.copy_(x), 2), ("fill", lambda: y.fill_(1.0), 1),
                             ("sum", lambda: x.sum(), 1), ("add", lambda: torch.add(x, y, out=y), 3)):
        record("memory " + what, lambda: [run() for _ in range(20)], 0.0, 20 * moved * size)
    h, weight = x[:2**26].view(16384, 4096), random(4096)
    leaf, gradient = h.clone().requires_grad_(), y[:2**26].view(16384, 4096)
    normed, rows = functional.rms_norm(leaf, (4096,), weight), torch.randperm(16384, device="cuda")
    logits, targets = random(8192, 32768), torch.randint(0, 32768, (8192,), device="cuda")
    state = [[torch.rand(2**24, device="cuda") for _ in range(4)] for _ in range(4)]
    steps = [torch.ones((), device="cuda") for _ in range(4)]
    optimizer = lambda: torch._fused_adam_(*state, [], steps, lr=1e-6, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8,
                                           amsgrad=False, maximize=False)
    for what, run, count, moved in (
            ("rms_norm", lambda: functional.rms_norm(h, (4096,), weight), 100, 4 * h.numel()),
            ("rms_norm backward", lambda: torch.autograd.grad(normed, leaf, gradient, retain_graph=True), 60, 6 * h.numel()),
            ("silu", lambda: functional.silu(h), 100, 4 * h.numel()), ("rows permuted", lambda: h[rows], 80, 4 * h.numel()),
            ("cast to fp8", lambda: h.to(torch.float8_e4m3fn), 80, 3 * h.numel()),
            ("cast to fp32", lambda: h.float(), 60, 6 * h.numel()),
            ("transposed copy", lambda: h.t().contiguous(), 60, 4 * h.numel()),
            ("softmax", lambda: torch.softmax(logits, -1), 20, 4 * logits.numel()),
            ("cross_entropy", lambda: functional.cross_entropy(logits, targets), 6, 6 * logits.numel()),
            ("adam", optimizer, 10, 28 * 4 * 2**24)):
        record("memory " + what, lambda: [run() for _ in range(count)], 0.0, float(count * moved))

    q, k, v = (random(2, 32, 4096, 128).requires_grad_() for _ in range(3))
    out, causal = torch.randn_like(q), 4.0 * 2 * 32 * 4096**2 * 128 / 2
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        attention = lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        both = lambda: [torch.autograd.grad(attention(), (q, k, v), out) for _ in range(6)]
        with torch.no_grad():
            record("attention forward", lambda: [attention() for _ in range(20)], 20 * causal)
        record("attention forward and backward", both, 6 * 3.5 * causal)

    a, b, c, few = random(4096, 4096), random(4096, 4096), random(4096, 4096), 2**25
    for products, between in ((1, 1), (5, 5), (20, 20), (50, 50), (100, 100), (300, 300), (2, 6), (6, 2), (60, 20)):
        for what in ("copies", "idle time"):
            stretches, count, cycles = [], round(products / 0.22), max(1, round(20 / (products + between)))

            def batch():
                for _ in range(cycles):
                    begin = event()
                    for _ in range(count):
                        torch.mm(a, b, out=c)
                    stretches.append((begin, event()))
                    if what == "idle time":
                        torch.cuda._sleep(int(between * 1.6e6))
                    else:
                        for _ in range(round(between / 0.048)):
                            y[:few].copy_(x[:few])

            record(f"{products} ms of products, {between} ms of {what}", batch, cycles * count * 2 * 4096.0**3,
                   stretches=stretches, products_each=count)


def collectives():
    """Products of 4096 take turns with collectives on one stream, or run beside them on another. All GPUs run the same
    number of batches. `products_ms` is of each stretch of products, `collective_ms` of what follows it."""
    import os

    import torch
    import torch.distributed as dist

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    ranks, meter, bf16 = dist.get_world_size(), Meter(rank), torch.bfloat16
    head = {"schema": 1, "device": torch.cuda.get_device_name(), "rank": rank, "of": ranks, "torch": torch.__version__,
            "cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    side = torch.cuda.Stream()

    def record(what, batch, stretches):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(3):
            batch()
        torch.cuda.synchronize()
        count = torch.tensor(SECONDS / ((time.perf_counter() - began) / 3), device="cuda")
        dist.all_reduce(count, dist.ReduceOp.MAX)
        time.sleep(PAUSE)
        dist.barrier()
        stretches.clear()
        start, ends = time.perf_counter(), []
        for _ in range(int(count.item())):
            batch()
            ends.append(event())
            if len(ends) > 2:
                ends[-3].synchronize()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        samples = [[round(at - start, 4), *rest] for at, *rest in meter.samples if start <= at <= start + seconds]
        print(json.dumps({**head, "what": what, "seconds": round(seconds, 4), "samples": samples[::3],
                          "products_ms": [round(a.elapsed_time(b), 4) for a, b, _ in stretches],
                          "collective_ms": [round(b.elapsed_time(c), 4) for _, b, c in stretches]}) + "\n", end="", flush=True)

    whole, part = torch.randn(2**26, device="cuda").to(bf16), torch.randn(2**26 // ranks, device="cuda").to(bf16)
    swapped, a, b, c = torch.empty_like(whole), *(torch.randn(4096, 4096, device="cuda").to(bf16) for _ in range(3))

    def kinds(mib):
        """Collectives whose larger buffer has `mib` MiB a GPU."""
        n = mib * 2**19
        return {"all_gather": lambda: dist.all_gather_into_tensor(whole[:n], part[:n // ranks]),
                "reduce_scatter": lambda: dist.reduce_scatter_tensor(part[:n // ranks], whole[:n]),
                "all_to_all": lambda: dist.all_to_all_single(swapped[:n], whole[:n])}

    def turns(products, run, times, beside=False):
        """`products` products, then `run` as often as `times`; together 20 ms or more. `beside`: `run` on its own stream."""
        stretches, cycles = [], max(1, round(80 / (products + 1)))

        def batch():
            for _ in range(cycles):
                begin = event()
                if beside:
                    side.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(side):
                        for _ in range(times):
                            run()
                for _ in range(products):
                    torch.mm(a, b, out=c)
                middle = event()
                if beside:
                    torch.cuda.current_stream().wait_stream(side)
                else:
                    for _ in range(times):
                        run()
                stretches.append((begin, middle, event()))
        return batch, stretches

    record("products", *turns(27, lambda: None, 0))
    record("27 products, idle time of 2 ms", *turns(27, lambda: torch.cuda._sleep(int(2 * 1.6e6)), 1))
    for mib in (128, 16):
        for what, run in kinds(mib).items():
            record(f"{what} of {mib} MiB", *turns(0, run, 128 // mib))
    for what, run in kinds(128).items():
        record(f"27 products, 6 {what} of 128 MiB", *turns(27, run, 6))
        record(f"27 products, {what} of 128 MiB", *turns(27, run, 1))
    record("9 products, all_gather of 128 MiB", *turns(9, kinds(128)["all_gather"], 1))
    for what, run in kinds(128).items():
        record(f"27 products beside 14 {what} of 128 MiB", *turns(27, run, 14, beside=True))
        record(f"27 products beside 6 {what} of 128 MiB", *turns(27, run, 6, beside=True))
    dist.destroy_process_group()


def products():
    """Forward, dgrad and wgrad of linears [m, k] x [k, n]: six after a pause, then without a pause for 1.6 s, of which the
    later half counts. All GPUs run at once. Before, 6 s of products heat them."""
    import os

    import torch

    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)

    def random(*shape):
        return torch.randn(*shape, device="cuda").to(torch.bfloat16)

    def without_pause(run, count, seconds):
        start, stretches = time.perf_counter(), []
        while time.perf_counter() - start < seconds:
            begin = event()
            for i in range(count):
                run(i % 2)
            stretches.append((begin, event()))
            if len(stretches) > 2:
                stretches[-3][1].synchronize()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / count for a, b in stretches]

    big = random(8192, 8192)
    without_pause(lambda _: torch.mm(big, big), 50, 6.0)
    for m, n, k in ((8192, 8192, 8192), (32768, 59136, 8192), (32768, 8192, 29568), (32768, 152064, 8192), (16384, 28672, 5120),
                    (16384, 5120, 14336), (16384, 27648, 5120), (16384, 5120, 13824), (32768, 27648, 5120), (8192, 57344, 8192),
                    (8192, 28672, 4096), (4096, 28672, 4096)):
        x, w, dy = [random(m, k) for _ in range(2)], random(n, k), random(m, n)
        y, dx, dw = torch.empty_like(dy), torch.empty_like(x[0]), torch.empty_like(w)
        flops = 2.0 * m * n * k
        for phase, run in (("forward", lambda i: torch.mm(x[i], w.t(), out=y)), ("dgrad", lambda i: torch.mm(dy, w, out=dx)),
                           ("wgrad", lambda i: torch.mm(dy.t(), x[i], out=dw))):
            run(0)
            torch.cuda.synchronize()
            time.sleep(0.4)
            marks = [event()]
            for i in range(6):
                run(i % 2)
                marks.append(event())
            torch.cuda.synchronize()
            short = [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
            late = without_pause(run, max(1, int(0.02 / (flops / 7e14))), 1.6)
            late = statistics.median(late[len(late) // 2:])
            print(json.dumps({"gpu": gpu, "m": m, "n": n, "k": k, "phase": phase, "short_ms": [round(t, 4) for t in short],
                              "late_ms": round(late, 4), "short_tf": round(flops / statistics.median(short[1:4]) / 1e9),
                              "late_tf": round(flops / late / 1e9)}) + "\n", end="", flush=True)


def gpus(seconds=20.0):
    """Rounds of 300 products of 8192 x 8192 x 8192 on every GPU, two of them always queued."""
    import torch

    torch.set_default_dtype(torch.bfloat16)
    n, count, devices = 8192, 300, range(torch.cuda.device_count())
    meters = [Meter(i, watch=False) for i in devices]
    for what, make in (("random", torch.randn), ("zeros", torch.zeros)):
        operands = [[make(n, n, device=i), make(n, n, device=i), torch.empty(n, n, device=i)] for i in devices]
        rounds, samples, start = [[] for _ in devices], [[] for _ in devices], time.perf_counter()

        def mark(i):
            with torch.cuda.device(i):
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                rounds[i].append(event)

        for i in devices:
            mark(i)
        while time.perf_counter() - start < (seconds if what == "random" else 4.0):
            for i in devices:
                for _ in range(count):
                    torch.mm(operands[i][0], operands[i][1], out=operands[i][2])
                mark(i)
            if len(rounds[0]) <= 3:
                continue
            for i in devices:
                rounds[i][-3].synchronize()
                samples[i].append((meters[i].read("nvmlDeviceGetClockInfo", ctypes.c_uint, 1),
                                   1e-3 * meters[i].read("nvmlDeviceGetPowerUsage", ctypes.c_uint),
                                   meters[i].read("nvmlDeviceGetTemperature", ctypes.c_uint, 0)))
        for i in devices:
            torch.cuda.synchronize(i)
            tflops = [round(count * 2e-9 * n**3 / a.elapsed_time(b), 1) for a, b in zip(rounds[i], rounds[i][1:])]
            properties = torch.cuda.get_device_properties(i)
            print(json.dumps({"schema": 1, "device": properties.name, "uuid": str(properties.uuid), "of": len(devices),
                              "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "torch": torch.__version__,
                              "what": f"gemm bf16 8192x8192x8192, {what}, all GPUs at once", "tflops": tflops,
                              "sm_mhz": [s[0] for s in samples[i]], "watts": [round(s[1], 1) for s in samples[i]],
                              "celsius": [s[2] for s in samples[i]]}), flush=True)


def slope(samples):
    """Watts: least squares through the energy counter's steps."""
    steps = [s for before, s in zip(samples, samples[1:]) if s[1] != before[1]]
    if len(steps) < 3:
        return float("nan")
    times, joules = [s[0] for s in steps], [1e-3 * s[1] for s in steps]
    t, j = statistics.mean(times), statistics.mean(joules)
    return sum((a - t) * (b - j) for a, b in zip(times, joules)) / sum((a - t)**2 for a in times)


def records(path):
    with (lzma.open if path.endswith(".xz") else open)(path, "rt") as file:
        return [json.loads(line) for line in file]


def table(path):
    """W, SM clock and rates of the last 70 % of each workload, and the share of the rate of its fastest early batch."""
    lines = records(path)
    base, busy = None, []
    of_product = min(statistics.median(line["products_ms"]) / line["products_each"] for line in lines if "products_ms" in line)
    print(f"{lines[0]['device']}\n{'workload':46s}     W   MHz  TFLOP/s  TB/s  share of full rate")
    for line in lines:
        ends, samples = line["ends_ms"], [s for s in line["samples"] if s[0] > 0.3 * line["seconds"]]
        batches = [b - a for a, b in zip([0.0] + ends, ends)]
        late = statistics.mean(batches[len(batches) * 3 // 10:])
        watts, share = slope(samples), min(batches[:4]) / late
        if "products_ms" in line:
            stretches = line["products_ms"]
            share = of_product * line["products_each"] / statistics.mean(stretches[len(stretches) // 2:])
        if line["what"] == "idle":
            base = watts
        elif line["what"].startswith("memory"):
            busy.append(watts - base)
        print(f"{line['what']:46s} {watts:5.0f} {statistics.mean(s[2] for s in samples):5.0f}  {line['flops'] / late / 1e9:7.0f}"
              f"  {line['bytes'] / late / 1e9:4.2f}  {share:.3f}")
    print(f"base {base:.0f} W; memory-bound kernels above it: median {statistics.median(busy):.0f} W, "
          f"{min(busy):.0f} to {max(busy):.0f}")


def watch():
    class Field(ctypes.Structure):
        _fields_ = [("id", ctypes.c_uint), ("scope", ctypes.c_uint), ("time", ctypes.c_longlong), ("latency", ctypes.c_longlong),
                    ("type", ctypes.c_int), ("result", ctypes.c_int), ("value", ctypes.c_ulonglong)]

    meter, power = Meter(watch=False), Field(id=186)  # NVML_FI_DEV_POWER_INSTANT, mW
    while True:
        meter.nvml.nvmlDeviceGetFieldValues(meter.device, 1, ctypes.byref(power))
        clock = meter.read("nvmlDeviceGetClockInfo", ctypes.c_uint, 1)
        print(f"{time.time():.3f} {clock} {(power.value & 0xffffffff) / 1000:.0f}", flush=True)
        time.sleep(0.01)


def steps(path):
    """Of each run its median step, and in its steps the mean W and SM clock."""
    print(f"{'run':28s}  step s     W   MHz")
    for line in records(path):
        step = statistics.median(line["step_times_s"][3:])
        watts, clock = (statistics.mean(line["sampled"][key]) for key in ("power_w", "sm_mhz"))
        print(f"{line['run']['id']:28s}  {step:6.4f}  {watts:4.0f}  {clock:4.0f}")


if __name__ == "__main__":
    {"measure": measure, "collectives": collectives, "products": products, "gpus": gpus,
     "table": lambda: table(sys.argv[2]), "watch": watch, "steps": lambda: steps(sys.argv[2])}[sys.argv[1]]()
