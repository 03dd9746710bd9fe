"""Times grouped GEMMs in one kernel (CUTLASS in PyTorch: torch._grouped_mm, torch._scaled_grouped_mm): experts' forward,
dgrad and wgrad (into BF16, not added to FP32) in BF16, forward in FP8 with a scale a row. A JSON line a setting, with every
sample in us; n and k are of the forward's weight. The first line's product is checked against float64. Needs one GPU of
Hopper and PyTorch.

    python3 kernels/torch/grouped_mm.py > h100_grouped_mm.jsonl
"""

import json

import torch

BF16, FP8, SAMPLES = torch.bfloat16, torch.float8_e4m3fn, 12
WIDTHS = ((2048, 1536, 768), (4096, 3072, 1536), (7168, 4096, 2048))  # Hidden, width of fc1, inputs of fc2.
ROWS = {4: (256, 1024, 4096, 16384), 8: (128, 512, 2048, 8192), 16: (64, 256, 1024, 4096), 32: (64, 128, 512, 2048),
        64: (64, 256, 1024), 128: (64, 256)}  # Groups: rows of each.
HEAD = {"schema": 1, "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}


def line(of, runs):
    for run in runs:
        run()
    torch.cuda.synchronize()
    us = []
    for i in range(SAMPLES):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(200_000)  # The host runs ahead.
        begin.record()
        runs[i % len(runs)]()
        end.record()
        torch.cuda.synchronize()
        us.append(round(begin.elapsed_time(end) * 1e3, 2))
        torch.cuda._sleep(2_000_000)  # Cool.
    print(json.dumps({**HEAD, **of, "us": us}), flush=True)


def setting(groups, each, n, k, distribution="balanced"):
    rows = groups * each
    counts = [each] * groups
    if distribution == "skewed":  # Expert i gets 1 / (1 + i), in whole 16 rows.
        weights = [1 / (1 + i) for i in range(groups)]
        counts = [max(16, int(rows * w / sum(weights)) // 16 * 16) for w in weights]
        counts[0] += rows - sum(counts)
    ends = torch.tensor(counts, device="cuda").cumsum(0).to(torch.int32)
    of = {"groups": groups, "rows": rows, "max_rows": max(counts), "n": n, "k": k, "distribution": distribution}
    sets = range(2 if 2 * (rows * (n + k) + groups * n * k) < 8e9 else 1)
    x, w, y = ([torch.randn(*shape, device="cuda").to(BF16) for _ in sets] for shape in ((rows, k), (groups, n, k), (rows, n)))
    one = {"kernel": "torch_grouped_mm", "format": "bf16"}
    line({**one, "phase": "forward", **of}, [lambda i=i: torch._grouped_mm(x[i], w[i].transpose(1, 2), offs=ends) for i in sets])
    line({**one, "phase": "dgrad", **of}, [lambda i=i: torch._grouped_mm(y[i], w[i], offs=ends) for i in sets])
    line({**one, "phase": "wgrad", **of}, [lambda i=i: torch._grouped_mm(y[i].t(), x[i], offs=ends) for i in sets])
    if distribution == "balanced":
        x8, w8 = [t.to(FP8) for t in x], [t.to(FP8) for t in w]
        by_row, by_column = torch.ones(rows, device="cuda"), torch.ones(groups, n, device="cuda")
        line({"kernel": "torch_scaled_grouped_mm", "format": "fp8", "phase": "forward", **of},
             [lambda i=i: torch._scaled_grouped_mm(x8[i], w8[i].transpose(1, 2), by_row, by_column, offs=ends, out_dtype=BF16,
                                                   use_fast_accum=True) for i in sets])


def check():
    x, w = torch.randn(256, 128, device="cuda").to(BF16), torch.randn(4, 192, 128, device="cuda").to(BF16)
    ends = torch.tensor([64, 128, 192, 256], device="cuda", dtype=torch.int32)
    exact = torch.cat([x[64 * i:64 * i + 64].double() @ w[i].double().t() for i in range(4)])
    error = (torch._grouped_mm(x, w.transpose(1, 2), offs=ends).double() - exact).abs().max() / exact.abs().max()
    if error > 0.01:
        raise SystemExit(f"wrong: off by {error}")


check()
for groups, all_rows in ROWS.items():
    for each in all_rows:
        for hidden, fc1, fc2 in WIDTHS:
            setting(groups, each, fc1, hidden)
            setting(groups, each, hidden, fc2)
for groups, each in ((8, 2048), (16, 1024), (32, 512), (64, 256)):
    for hidden, fc1, fc2 in WIDTHS[:2]:
        setting(groups, each, fc1, hidden, "skewed")
for groups in (1, 2, 8):
    setting(groups, 4096, 8192, 6144)
    setting(groups, 4096, 6144, 4096)
