r"""Times the kernels that Megatron's Python reaches and our CUDA programs do not: mamba_ssm's Triton kernels, the eager
ops of GPT-OSS's experts, Megatron's losses and its permutation without Transformer Engine; forward, and forward with
backward. One JSON line per setting: wall times of ten runs in ms, and for each kernel its calls and microseconds in one
run. Needs one GPU and PyTorch; norms: Transformer Engine; mamba: mamba_ssm (its Triton part) and causal_conv1d;
loss, permute: megatron-core 0.16.1 (and Transformer Engine for its loss). v4: what DeepSeek-V4 has besides products and
attention, by the formulas of transformers 5.24 (models/deepseek_v4), compiled. delta: flash-linear-attention 0.6.0 and,
on Hopper with Triton below 3.7.1, TileLang, which it then uses for one kernel and which prints lines of its own.

    python3 kernels/torch/software_kernels.py experts mamba loss permute v4 delta norms | grep '^{' \
      > hwprofiles/data/kernels/software_kernels.jsonl
"""

import json
import sys

import torch
import triton
from torch.profiler import ProfilerActivity, profile

REPEATS, PROFILED = 10, 5


# Each size by itself: what is compiled for any size is up to three times as slow.
compiled = torch.compile(dynamic=False)


def leaf(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_()


def kernels(step):
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    walls = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        walls.append(begin.elapsed_time(end))
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    names = {}
    for event in profiled.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and event.device_time > 0:
            calls = names.setdefault(event.name[:90], [0.0, 0.0])
            calls[0] += 1 / PROFILED
            calls[1] += event.device_time / PROFILED
    return {"wall_ms": walls, "kernels_us": dict(sorted(names.items(), key=lambda item: -item[1][1]))}


def write(what, phase, sizes, step):
    head = {"schema": 1, "device": torch.cuda.get_device_name(), "torch": torch.__version__,
            "cuda": torch.version.cuda, "triton": triton.__version__, "what": what, "phase": phase}
    print(json.dumps({**head, **sizes, **kernels(step)}), flush=True)


def record(what, sizes, run, leaves):
    def outputs():
        result = run()
        return result if isinstance(result, tuple) else (result,)

    gradients = [torch.randn_like(output) for output in outputs()]

    def both():
        torch.autograd.backward(outputs(), gradients)
        for tensor in leaves:
            tensor.grad = None

    for phase, step in (("forward", run), ("forward+backward", both)):
        write(what, phase, sizes, step)
    torch.cuda.empty_cache()
    torch.compiler.reset()


def chunk_scan(batch, seq, heads, head_dim=64, groups=8, state=128, chunk=128):
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    x, dt = leaf(batch, seq, heads, head_dim), leaf(batch, seq, heads)
    b, c = leaf(batch, seq, groups, state), leaf(batch, seq, groups, state)
    bias, d = leaf(heads, dtype=torch.float32), leaf(heads, dtype=torch.float32)
    a = (-torch.rand(heads, device="cuda") - 0.5).requires_grad_()
    record("mamba_chunk_scan_combined",
           {"batch": batch, "seq": seq, "heads": heads, "head_dim": head_dim, "groups": groups, "state": state,
            "chunk": chunk},
           lambda: mamba_chunk_scan_combined(x, dt, a, b, c, chunk, D=d, dt_bias=bias, dt_softplus=True),
           (x, dt, a, b, c, d, bias))


def gated_norm(rows, width, groups=8):
    from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn

    x, z, weight = leaf(rows, width), leaf(rows, width), leaf(width)
    record("gated_norm", {"rows": rows, "width": width, "groups": groups},
           lambda: rmsnorm_fn(x, weight, None, z=z, eps=1e-5, group_size=width // groups, norm_before_gate=False),
           (x, z, weight))


def split_conv1d_scan(batch, seq, heads, head_dim=64, groups=8, state=128, chunk=128, kernel=4):
    """Convolution, scan and gate: MambaMixer._ssm_training in megatron/core/ssm/mamba_mixer.py."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_split_conv1d_scan_combined

    inner, channels = heads * head_dim, heads * head_dim + 2 * groups * state
    zxbcdt, weight, bias = leaf(batch, seq, inner + channels + heads), leaf(channels, kernel), leaf(channels)
    dt_bias, d = leaf(heads, dtype=torch.float32), leaf(heads, dtype=torch.float32)
    a = (-torch.rand(heads, device="cuda") - 0.5).requires_grad_()
    record("mamba_split_conv1d_scan_combined",
           {"batch": batch, "seq": seq, "heads": heads, "head_dim": head_dim, "groups": groups, "state": state,
            "chunk": chunk},
           lambda: mamba_split_conv1d_scan_combined(zxbcdt, weight, bias, dt_bias, a, d, chunk, activation="silu",
                                                    headdim=head_dim, ngroups=groups),
           (zxbcdt, weight, bias, dt_bias, a, d))


def expert_bias(rows, width, local_experts):
    """TEGroupedMLP._apply_bias in megatron/core/transformer/moe/experts.py."""
    x, probs = leaf(rows, width), leaf(rows, 1, dtype=torch.float32)
    biases, counts = [leaf(width) for _ in range(local_experts)], [rows // local_experts] * local_experts
    record("expert_bias", {"rows": rows, "width": width, "local_experts": local_experts},
           lambda: torch.cat([t + b * p for t, b, p in zip(torch.split(x, counts), biases,
                                                           torch.split(probs, counts))]).to(x.dtype),
           (x, probs, *biases))


def activation_clamp(rows, width, limit=7.0):
    """The head of weighted_bias_quick_geglu_impl in megatron/core/fusions/fused_bias_geglu.py."""
    x = leaf(rows, width)

    def run():
        glu, linear = x.chunk(2, -1)
        return torch.cat((glu.clamp(min=None, max=limit), linear.clamp(min=-limit, max=limit)), -1)

    record("activation_clamp", {"rows": rows, "width": width}, run, (x,))


def rms_norm(rows, width):
    """Transformer Engine has kernels tuned for some widths (REGISTER_NORM_LAUNCHER in its normalization/rmsnorm)."""
    from transformer_engine.pytorch import RMSNorm

    x, norm = leaf(rows, width), RMSNorm(width, params_dtype=torch.bfloat16, device="cuda")
    kind = "tuned" if width in (512, 768, 1024, 2048, 4096, 8192) else "heads" if width <= 256 else "general"
    record("rms_norm", {"kind": kind, "rows": rows, "width": width}, lambda: norm(x), (x, norm.weight))


def losses(tokens, vocab):
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    if not dist.is_initialized():
        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29400", rank=0, world_size=1)
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    group = parallel_state.get_tensor_model_parallel_group()
    logits, labels = leaf(tokens, 1, vocab), torch.randint(0, vocab, (tokens, 1), device="cuda")
    kinds = {"unfused": lambda: vocab_parallel_cross_entropy(logits, labels),
             "native": lambda: fused_vocab_parallel_cross_entropy(logits, labels, group)}
    try:
        from megatron.core.extensions.transformer_engine import te_parallel_cross_entropy

        # Works in place, which autograd refuses on a leaf: on a copy, whose kernels (AUnaryFunctor) are not the loss's.
        kinds["TE"] = lambda: te_parallel_cross_entropy(logits * 1.0, labels, group)
    except ImportError:
        pass
    for kind, run in kinds.items():
        record("cross_entropy", {"kind": kind, "tokens": tokens, "vocab": vocab}, run, (logits,))


def unfused_permute(tokens, width, experts, per_token, chunks):
    """permute, sort_chunks_by_idxs and unpermute in megatron/core/transformer/moe/moe_utils.py, not fused."""
    from megatron.core.transformer.moe import moe_utils

    chosen = torch.rand(tokens, experts, device="cuda").topk(per_token, dim=1).indices
    routing = torch.zeros(tokens, experts, dtype=torch.bool, device="cuda").scatter_(1, chosen, True)
    probs = torch.rand(tokens, experts, device="cuda").requires_grad_()
    x = leaf(tokens, width)
    sizes = {"tokens": tokens, "width": width, "experts": experts, "topk": per_token}
    rows = int(routing.sum())
    record("unfused_permute", sizes, lambda: moe_utils.permute(x, routing, probs, rows)[0], (x, probs))
    _, _, order = moe_utils.permute(x, routing, probs, rows)
    y = leaf(rows, width)
    record("unfused_unpermute", sizes, lambda: moe_utils.unpermute(y, order, x.shape), (y,))
    if chunks > 1:
        counts = torch.full((chunks,), rows // chunks)
        counts[0] += rows - int(counts.sum())
        indices, weights = torch.randperm(chunks), torch.rand(rows, device="cuda").requires_grad_()
        record("unfused_sort_chunks", {"rows": rows, "width": width, "chunks": chunks},
               lambda: moe_utils.sort_chunks_by_idxs(y, counts, indices, probs=weights)[0], (y, weights))


def hyper_connection(tokens, streams, width, kind, iterations=20):
    """DeepseekV4HyperConnection and what DeepseekV4DecoderLayer does with it around attention or MLP, here the
    identity. The streams' norm has no weight, so the product may come before it, as in bf16."""
    F, eps = torch.nn.functional, 1e-6
    x, fn = leaf(tokens, streams, width), leaf((2 + streams) * streams, streams * width, dtype=torch.float32)
    base, scale = (leaf(n, dtype=torch.float32) for n in ((2 + streams) * streams, 3))

    @compiled
    def collapse(x, fn, base, scale):
        flat = x.flatten(1)
        norm = torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + eps)
        if kind == "bf16":
            weights = F.linear(flat, fn.bfloat16()).float() * norm
        else:
            weights = F.linear(flat.float() * norm, fn)
        pre, post, comb = weights.split([streams, streams, streams * streams], dim=-1)
        pre_base, post_base, comb_base = base.split([streams, streams, streams * streams])
        pre = torch.sigmoid(pre * scale[0] + pre_base) + eps
        post = 2 * torch.sigmoid(post * scale[1] + post_base)
        comb = torch.softmax(comb.view(-1, streams, streams) * scale[2] + comb_base.view(streams, streams), -1) + eps
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
        for _ in range(iterations - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + eps)
            comb = comb / (comb.sum(-2, keepdim=True) + eps)
        return post, comb, (pre.unsqueeze(-1) * x).sum(1).to(x.dtype)

    @compiled
    def expand(x, output, post, comb):
        mixed = (comb.to(x.dtype).unsqueeze(-1) * x.unsqueeze(2)).sum(1)  # comb transposed, times the streams.
        return post.to(x.dtype).unsqueeze(-1) * output.unsqueeze(1) + mixed

    def run():
        post, comb, collapsed = collapse(x, fn, base, scale)
        return expand(x, collapsed, post, comb)

    record("hyper_connection", {"tokens": tokens, "streams": streams, "width": width, "kind": kind},
           run, (x, fn, base, scale))


def key_compressor(tokens, width, ratio, windows):
    """The pooling of DeepseekV4HCACompressor, and with two windows a key of DeepseekV4CSACompressor."""
    kv, gate = leaf(tokens, windows * width), leaf(tokens, windows * width)
    bias = leaf(ratio, windows * width, dtype=torch.float32)

    @compiled
    def run():
        values = kv.view(-1, ratio, windows * width)
        gates = gate.view(-1, ratio, windows * width) + bias
        if windows == 2:
            none = lambda t, fill: torch.cat([torch.full_like(t[:1, :, :width], fill), t[:-1, :, :width]])
            values = torch.cat([none(values, 0.0), values[..., width:]], 1)
            gates = torch.cat([none(gates, float("-inf")), gates[..., width:]], 1)
        return (values * gates.softmax(1, dtype=torch.float32).to(values.dtype)).sum(1)

    record("key_compressor", {"tokens": tokens, "width": width, "ratio": ratio, "windows": windows}, run,
           (kv, gate, bias))


def key_selection(tokens, keys, topk):
    """The scorer's ReLU, weights and sum over heads are part of the product; the best keys of each query are not."""
    scores = torch.randn(tokens, keys, device="cuda")
    write("key_selection", "forward", {"tokens": tokens, "keys": keys, "topk": topk},
          lambda: scores.topk(topk, sorted=False))


def query_norm(rows, width):
    """DeepseekV4UnweightedRMSNorm of every head's query, and its rotary slice, compiled."""
    x, angle = leaf(rows, width), torch.rand(rows, 32, device="cuda")

    @compiled
    def run():
        y = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype)
        rotary = y[:, -64:].float().view(rows, 32, 2)
        a, b = rotary.unbind(-1)
        turned = torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
        return torch.cat([y[:, :-64], turned.flatten(1).to(y.dtype)], -1)

    record("query_norm", {"rows": rows, "width": width}, run, (x,))


def deepseek_v4():
    for tokens, width in ((4096, 4096), (8192, 4096), (4096, 7168), (8192, 7168)):
        for kind in ("bf16", "fp32"):
            hyper_connection(tokens, 4, width, kind)
    for tokens in (4096, 16384):
        key_compressor(tokens, 512, 4, 2)
        key_compressor(tokens, 128, 4, 2)
        key_compressor(tokens, 512, 128, 1)
        query_norm(tokens * 64, 512)
    for tokens, keys, topk in ((4096, 1024, 512), (8192, 2048, 512), (16384, 4096, 512), (16384, 4096, 1024)):
        key_selection(tokens, keys, topk)


def gated_delta_rule(batch, seq, heads, head_dim=128):
    """GatedDeltaNet.forward in megatron/core/ssm/gated_delta_net.py: the keys are of length one."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    shape, F = (batch, seq, heads, head_dim), torch.nn.functional
    q, k = (F.normalize(leaf(*shape), dim=-1).detach().requires_grad_() for _ in range(2))
    v, beta = leaf(*shape), torch.rand(batch, seq, heads, device="cuda", dtype=torch.bfloat16).requires_grad_()
    g = (-F.softplus(torch.randn(batch, seq, heads, device="cuda"))).requires_grad_()
    record("gated_delta_rule", {"batch": batch, "seq": seq, "heads": heads, "head_dim": head_dim},
           lambda: chunk_gated_delta_rule(q, k, v, g=g, beta=beta)[0], (q, k, v, g, beta))


class Convolution(torch.autograd.Function):
    """A stand-in for causal_conv1d, whose gradients have their tokens together too."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.contiguous()


def delta_net_layout(batch, seq, key_heads, value_heads, head_dim=128):
    """The copies of GatedDeltaNet.forward around convolution, norms and rule, which are left out."""
    keys, values = key_heads * head_dim, value_heads * head_dim
    x = leaf(seq, batch, 2 * keys + 2 * values + 2 * value_heads)

    def run():
        qkv, gate, beta, alpha = x.transpose(0, 1).split([2 * keys + values, values, value_heads, value_heads], -1)
        gate = gate.reshape(batch, seq, -1, head_dim)
        qkv = Convolution.apply(qkv.transpose(1, 2).contiguous()).transpose(1, 2)
        query, key, value = (part.reshape(batch, seq, -1, head_dim) for part in qkv.split([keys, keys, values], -1))
        query, key = (part.contiguous().repeat_interleave(value_heads // key_heads, 2) for part in (query, key))
        return query, key, value.contiguous(), gate.contiguous(), beta.contiguous(), alpha.contiguous()

    record("delta_net_layout",
           {"batch": batch, "seq": seq, "key_heads": key_heads, "value_heads": value_heads, "head_dim": head_dim}, run,
           (x,))


def delta_net():
    for batch, seq, heads in ((1, 4096, 32), (1, 8192, 32), (2, 4096, 32), (3, 4096, 32), (1, 8192, 64)):
        delta_net_layout(batch, seq, 16, heads)
    for batch, seq, heads in ((1, 4096, 32), (1, 8192, 32), (2, 8192, 32), (1, 8192, 64), (4, 4096, 64)):
        gated_delta_rule(batch, seq, heads)


def mamba():
    for batch, seq, heads in ((1, 8192, 64), (2, 8192, 64), (1, 8192, 128), (1, 4096, 64)):
        chunk_scan(batch, seq, heads)
        split_conv1d_scan(batch, seq, heads)
    gated_norm(8192, 4096)
    gated_norm(16384, 4096)


def gpt_oss_experts():
    expert_bias(65536, 2880, 2)
    expert_bias(65536, 2880, 16)
    activation_clamp(65536, 5760)


def loss():
    for tokens, vocab in ((4096, 75968), (4096, 37984), (4096, 32000), (8192, 151936)):
        losses(tokens, vocab)


def norms():
    for width in (1536, 2048, 2304, 2560, 2880, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 12288):
        for rows in (8192, 16384, 32768):
            rms_norm(rows, width)
    for rows in (65536, 262144, 524288):
        rms_norm(rows, 128)


def permute():
    unfused_permute(2048, 4096, 128, 8, 128)  # Qwen3-235B's share of a rank under TP 2,
    unfused_permute(14600, 4096, 4, 1, 1)  # and about what it receives from DeepEP under EP 32.
    unfused_permute(4096, 4096, 8, 2, 8)
    unfused_permute(4096, 7168, 256, 8, 256)


if __name__ == "__main__":
    for group in sys.argv[1:]:
        {"experts": gpt_oss_experts, "mamba": mamba, "loss": loss, "norms": norms, "permute": permute,
         "v4": deepseek_v4, "delta": delta_net}[group]()
