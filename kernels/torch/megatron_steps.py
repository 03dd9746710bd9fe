"""Runs training steps of Megatron-Core on the GPUs of one node and writes times and memory of every rank.

    torchrun --standalone --nproc-per-node N kernels/torch/megatron_steps.py RUNS OUT [--calls] [--kernels]
        [--gaps] [--exchanges] [--trace DIR] [--profile DIR] [--dump SECONDS]

RUNS is a JSON list of {id, model, impl (te, local), layers, experts, seq, mb (micro-batches), mbs, tp, pp, vpp, ep,
dispatcher, recompute, vocab, permute (fused, unfused), loss (te, native, unfused), ep_overlap, delay_wgrad, dp_overlap,
router (fp32, bf16), fp8 (tensorwise, delayed, blockwise), graphs (scopes captured by Transformer Engine), cp, etp,
fsdp (what of a model's state Megatron FSDP shards), tied (embeddings), method and every (of full recomputation:
uniform, block, and its layers), steps; sizes (instead of the model's), config, ddp and optimizer (fields of Megatron's
configurations, data types by name)}, `experts` null for a dense model; and of what makes a run slow: {sleep_ms before each micro-batch, on rank sleep_rank or all, collect
(Python's garbage, before each micro-batch), skew (what the router adds to the random logits of the first half of the
experts), weights (zero: and no updates, so that the GPU draws less power)}; profile_memory; and of the host: manual_gc
(Python collects no garbage by itself, as with Megatron's --manual-gc), bind (each rank to its share of the cores, in
order). `variants` is a list of lists of {id, and what differs of loss, permute, router, recompute (modules, or ["full"]: every layer), fp8, ep_overlap,
eager (graphs are not replayed), seq, mb, p2p (overlapped, batched), skew, sleep_ms, collect, profile_memory, manual_gc
or bind}: of one built model, the steps of a list take turns, so that what changes with time (the host, the clock) is the same for all. A
model is built for fp8 or graphs if its run has them. Ranks that talk give little of a run's memory back
(allocated_before is what runs before left): a process each. Megatron wants CUDA_DEVICE_MAX_CONNECTIONS=1, above 1 for
ep_overlap and fsdp, and NVTE_CPU_OFFLOAD_V1=1 to offload fine-grained. OUT.rankN gets a JSON line a run, or variant. --calls also times what the host spends in modules,
dispatcher, collectives and autograd functions (nested calls are counted in both); --kernels profiles one more step:
calls and ms of each kernel; --gaps one more, without the host's ops: when nothing ran on the GPU; --exchanges one more:
when each rank launched, began and ended each of NCCL's kernels, by the host's clock; --trace writes what
the caching allocator did in the last steps, an event a line; --profile writes a trace of PyTorch's profiler of two more
steps, of a run with profile_memory also what the allocator did; --dump tells on stderr, every so many seconds, where
Python is.

One rank of a large job on one GPU: `world` is the number of the job's ranks and `rank` the one that runs, started without
torchrun. The others are not there: PyTorch's `fake` process group returns at once. Collectives fill
their outputs from what this rank has, by a copy in its memory (an exchange its own input, a reduce-scatter its own part, a
receive random numbers; gathered parameters and reduced gradients stay), and the router chooses every expert equally often.
So kernels, host and memory are the rank's own; NCCL's kernels, launches and buffers and the waiting for others are missing.
Runs of one process may differ in both; a run that fails leaves its error beside the times that it has, and of several
ranks ends them all. With sizes so small that the GPU only waits, a step is what its host takes.

Two ranks on one GPU take turns, but record what NCCL's kernels are given: start both with LOCAL_RANK=0, an NCCL_HOSTID of
its own each, and NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo.

Needs PyTorch, megatron-core 0.16.1, for impl te Transformer Engine, and for model "next" flash-linear-attention and
causal_conv1d. Stand-ins take the place of apex,
grouped_gemm and DeepEP: DeepEP's exchanges tokens by all-gather, and its time is counted as "deep_ep".
"""

import argparse
import contextlib
import datetime
import faulthandler
import gc
import gzip
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
import types

import torch
import torch.distributed as dist
import torch.nn.functional as F

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("runs")
parser.add_argument("out")
parser.add_argument("--calls", action="store_true")
parser.add_argument("--kernels", action="store_true")
parser.add_argument("--gaps", action="store_true")
parser.add_argument("--exchanges", action="store_true")
parser.add_argument("--trace")
parser.add_argument("--profile")
parser.add_argument("--dump", type=float)
arguments = parser.parse_args()
if arguments.dump:
    faulthandler.dump_traceback_later(arguments.dump, repeat=True)

with open(arguments.runs) as file:
    entries = json.load(file)
world = entries[0].get("world")  # Of ranks that are not there; None: all run.

calls = {}


def timed(name, function):
    def wrapper(*args, **kwargs):
        begin = time.perf_counter()
        result = function(*args, **kwargs)
        calls.setdefault(name, []).append(time.perf_counter() - begin)
        return result

    return wrapper


if arguments.calls:  # Before Megatron binds them.
    for name in ("all_to_all_single", "all_gather_into_tensor", "reduce_scatter_tensor"):
        setattr(dist, name, timed("collective " + name, getattr(dist, name)))
    torch.cuda.Event.synchronize = timed("event synchronize", torch.cuda.Event.synchronize)


def stand_in_for_others():
    """Has collectives of a fake process group fill what others would send, before Megatron binds them."""
    from torch.distributed import distributed_c10d

    all_reduce, all_to_all, irecv, received = dist.all_reduce, dist.all_to_all_single, distributed_c10d.irecv, {}

    def inside(part, whole):
        return part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()

    def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
        if not inside(input_tensor, output_tensor):
            parts, own = output_tensor.view(-1, input_tensor.numel()), input_tensor.reshape(1, -1)
            if parts.size(0) > 8:  # Counts of tokens: one kernel, not one a rank.
                parts.copy_(own)
            else:
                for i in range(parts.size(0)):
                    parts[i].copy_(own[0])
        return all_reduce(input_tensor, group=group, async_op=async_op)

    def reduce_scatter_tensor(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
        if not inside(output, input):
            output.view(-1).copy_(input.reshape(-1)[: output.numel()])
        return all_reduce(output, op=op, group=group, async_op=async_op)

    def all_to_all_single(output, input, *splits, **options):
        out, own = output.view(-1), input.reshape(-1)
        for begin in range(0, out.numel() if own.numel() else 0, max(1, own.numel())):
            part = out[begin : begin + own.numel()]
            part.copy_(own[: part.numel()])
        return all_to_all(output, input, *splits, **options)

    def received_at_random(tensor, *args, **options):
        if tensor.is_floating_point():
            if tensor.shape not in received:
                received[tensor.shape] = torch.randn(tensor.shape, device=tensor.device, dtype=torch.bfloat16)
            tensor.detach().copy_(received[tensor.shape])
        return irecv(tensor, *args, **options)

    dist.all_gather_into_tensor, dist.reduce_scatter_tensor = all_gather_into_tensor, reduce_scatter_tensor
    dist.all_to_all_single = all_to_all_single
    dist.irecv = distributed_c10d.irecv = received_at_random


if world:
    stand_in_for_others()


def module(name, **members):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(members)


def wgrad_gemm_accum(total_input, grad_output, main_grad):
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    general_gemm(
        total_input, grad_output, out_dtype=main_grad.dtype, layout="NT", out=main_grad, accumulate=True, grad=True
    )


class GroupedMm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, counts, trans_b):
        offsets = counts.to(a.device, non_blocking=True).cumsum(0).to(torch.int32)
        ctx.save_for_backward(a, b, offsets)
        ctx.trans_b = trans_b
        return torch._grouped_mm(a, b.transpose(-2, -1) if trans_b else b, offs=offsets)

    @staticmethod
    def backward(ctx, grad):
        a, b, offsets = ctx.saved_tensors
        grad = grad.contiguous()
        grad_a = torch._grouped_mm(grad, b if ctx.trans_b else b.transpose(-2, -1), offs=offsets)
        grad_b = torch._grouped_mm(a.transpose(0, 1), grad, offs=offsets)
        return grad_a, (grad_b.transpose(-2, -1) if ctx.trans_b else grad_b), None, None


class Event:
    def __init__(self, *_):
        pass

    def current_stream_wait(self):
        pass


class NoSize:
    def get_nvl_buffer_size_hint(self, *_):
        return 0

    get_rdma_buffer_size_hint = get_nvl_buffer_size_hint


class Buffer:
    """DeepEP's interface as Megatron calls it; every rank receives all tokens of its group."""

    get_dispatch_config = get_combine_config = staticmethod(lambda size: NoSize())
    set_num_sms = staticmethod(lambda count: None)

    def __init__(self, group, num_nvl_bytes, num_rdma_bytes):
        self.group, self.num_nvl_bytes, self.num_rdma_bytes = group, num_nvl_bytes, num_rdma_bytes

    def gather(self, x):
        out = x.new_empty((x.size(0) * self.group.size(), *x.shape[1:]))
        dist.all_gather_into_tensor(out, x.contiguous(), group=self.group)
        return out

    def scatter(self, x):
        out = x.new_empty((x.size(0) // self.group.size(), *x.shape[1:]))
        dist.reduce_scatter_tensor(out, x.contiguous(), group=self.group)
        return out

    def get_dispatch_layout(self, topk_idx, num_experts, **_):
        return num_experts, None, None, None, Event()

    def dispatch(self, x, topk_idx=None, topk_weights=None, num_tokens_per_rank=None, handle=None, **_):
        if handle is not None:
            return self.gather(x) if handle[1] is None else x[handle[1]], None, None, None, None, Event()
        if world:
            return self.dispatch_own(x, topk_idx, topk_weights, num_tokens_per_rank // self.group.size())
        tokens = self.gather(x)
        local = num_tokens_per_rank // self.group.size()
        first = local * self.group.rank()
        indices, weights = self.gather(topk_idx), self.gather(topk_weights)
        here = (indices >= first) & (indices < first + local)
        indices = torch.where(here, indices - first, -1)
        counts = torch.bincount((indices + 1).view(-1), minlength=local + 1)
        return tokens, indices, torch.where(here, weights, 0), counts[1:].tolist(), ("handle", None), Event()

    def dispatch_own(self, x, indices, weights, local):
        """As if every rank of the group had this one's tokens: those with an expert here, once a rank."""
        here = (indices >= local * self.group.rank()) & (indices < local * (self.group.rank() + 1))
        rows = here.any(dim=1).nonzero().view(-1).repeat(self.group.size())
        indices = torch.where(here, indices - local * self.group.rank(), -1)[rows]
        counts = torch.bincount((indices + 1).view(-1), minlength=local + 1)
        weights = torch.where(here, weights, 0)[rows]
        return x[rows], indices, weights, counts[1:].tolist(), ("handle", rows, x.size(0)), Event()

    def combine(self, x, handle=None, topk_weights=None, **_):
        if world:
            weights = None if topk_weights is None else topk_weights[: handle[2]].clone()
            return x[: handle[2]].clone(), weights, Event()
        return self.scatter(x), None if topk_weights is None else self.scatter(topk_weights), Event()


for name in ("get_dispatch_layout", "dispatch", "combine"):
    setattr(Buffer, name, timed("deep_ep", getattr(Buffer, name)))
module("fused_weight_gradient_mlp_cuda", wgrad_gemm_accum_fp16=wgrad_gemm_accum, wgrad_gemm_accum_fp32=wgrad_gemm_accum)
module("grouped_gemm", ops=types.SimpleNamespace(gmm=lambda a, b, n, trans_b=False: GroupedMm.apply(a, b, n, trans_b)))
module("deep_ep.utils", EventHandle=Event, EventOverlap=Event)
module("deep_ep", Buffer=Buffer, utils=sys.modules["deep_ep.utils"])

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.config import set_experimental_flag  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    FullyShardedDataParallel,
    finalize_model_grads,
)
from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.fusions.fused_bias_geglu import quick_gelu  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (  # noqa: E402
    get_transformer_block_with_experimental_attention_variant_spec,
)
from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_decoder_block_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.num_microbatches_calculator import (  # noqa: E402
    init_num_microbatches_calculator,
    unset_num_microbatches_calculator,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func, schedules  # noqa: E402
from megatron.core.transformer import MLATransformerConfig, TransformerConfig, dot_product_attention  # noqa: E402
from megatron.core.transformer.cuda_graphs import TECudaGraphHelper  # noqa: E402
from megatron.core.transformer.identity_op import IdentityOp  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from megatron.core.transformer.moe import router  # noqa: E402

MODELS = {
    "q235": dict(  # A layer of Qwen3-235B-A22B.
        hidden_size=4096, num_attention_heads=64, num_query_groups=4, kv_channels=128, ffn_hidden_size=12288,
        moe_ffn_hidden_size=1536, moe_router_topk=8, qk_layernorm=True, vocab=151936,
    ),
    "q30": dict(  # A layer of Qwen3-30B-A3B.
        hidden_size=2048, num_attention_heads=32, num_query_groups=4, kv_channels=128, ffn_hidden_size=6144,
        moe_ffn_hidden_size=768, moe_router_topk=8, qk_layernorm=True, vocab=151936,
    ),
    "gpt-oss": dict(  # A layer of GPT-OSS; every second one has a window.
        hidden_size=2880, num_attention_heads=64, num_query_groups=8, kv_channels=64, ffn_hidden_size=2880,
        moe_ffn_hidden_size=2880, moe_router_topk=4, window_size=(127, 0), window_attn_skip_freq=2,
        softmax_type="learnable", add_bias_linear=True, activation_func=quick_gelu, glu_linear_offset=1.0,
        activation_func_clamp_value=7.0, vocab=201088,
    ),
    "mix": dict(  # A layer of Mixtral 8x7B.
        hidden_size=4096, num_attention_heads=32, num_query_groups=8, kv_channels=128, ffn_hidden_size=14336,
        moe_ffn_hidden_size=14336, moe_router_topk=2, vocab=32000,
    ),
    "llama": dict(  # A layer of Llama 3 8B.
        hidden_size=4096, num_attention_heads=32, num_query_groups=8, kv_channels=128, ffn_hidden_size=14336,
        vocab=128256,
    ),
    "mix22": dict(  # A layer of Mixtral 8x22B.
        hidden_size=6144, num_attention_heads=48, num_query_groups=8, kv_channels=128, ffn_hidden_size=16384,
        moe_ffn_hidden_size=16384, moe_router_topk=2, vocab=32768,
    ),
    "llama70": dict(  # A layer of Llama 3 70B.
        hidden_size=8192, num_attention_heads=64, num_query_groups=8, kv_channels=128, ffn_hidden_size=28672,
        vocab=128256,
    ),
    "llama405": dict(  # A layer of Llama 3.1 405B.
        hidden_size=16384, num_attention_heads=128, num_query_groups=8, kv_channels=128, ffn_hidden_size=53248,
        vocab=128256,
    ),
    "v3": dict(  # A layer of DeepSeek-V3.
        hidden_size=7168, num_attention_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_head_dim=128,
        qk_pos_emb_head_dim=64, v_head_dim=128, ffn_hidden_size=18432, moe_ffn_hidden_size=2048,
        moe_shared_expert_intermediate_size=2048, moe_router_topk=8, moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True, moe_router_num_groups=8, moe_router_group_topk=4,
        moe_router_topk_scaling_factor=2.5, qk_layernorm=True, multi_latent_attention=True, vocab=129280,
    ),
    "next": dict(  # Four layers of Qwen3-Next-80B-A3B: three gated delta nets, then attention.
        hidden_size=2048, num_attention_heads=16, num_query_groups=2, kv_channels=256, ffn_hidden_size=5120,
        moe_ffn_hidden_size=512, moe_router_topk=10, moe_shared_expert_intermediate_size=512,
        moe_shared_expert_gate=True, qk_layernorm=True, attention_output_gate=True,
        experimental_attention_variant="gated_delta_net", linear_attention_freq=4, linear_conv_kernel_dim=4,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_num_key_heads=16, linear_num_value_heads=32,
        vocab=151936,
    ),
    "v2-lite": dict(  # A layer of DeepSeek-V2-Lite.
        hidden_size=2048, num_attention_heads=16, q_lora_rank=None, kv_lora_rank=512, qk_head_dim=128,
        qk_pos_emb_head_dim=64, v_head_dim=128, ffn_hidden_size=10944, moe_ffn_hidden_size=1408,
        moe_shared_expert_intermediate_size=2816, moe_router_topk=6, qk_layernorm=True, multi_latent_attention=True,
        vocab=102400,
    ),
}


def attention(self, query, key, value, *_, **__):
    q, k, v = (t.permute(1, 2, 0, 3) for t in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.permute(2, 0, 1, 3).reshape(query.size(0), query.size(1), -1)


dot_product_attention.DotProductAttention.forward = attention  # impl local.

RECOMPUTED = {
    "core_attn": ["checkpoint_core_attention"],
    "layernorm": ["recompute_input_layernorm", "recompute_pre_mlp_layernorm"],
    "mlp": ["recompute_mlp"],
    "mla_up_proj": ["recompute_up_proj"],
    "moe": ["moe_layer_recompute"],
    "moe_act": ["activation_recompute"],
    "shared_experts": ["shared_experts_recompute"],
}
random_logits = router.apply_random_logits


class BalancedLogits(torch.autograd.Function):
    """Logits with which every expert is chosen equally often, each token's on as many ranks as there can be.

    The experts fall into `topk` parts, of which a token chooses one each; where only half of the groups may be chosen, a
    part is half of two neighbouring groups.
    """

    made = {}

    @staticmethod
    def forward(ctx, logits, topk, halves):
        key = (logits.shape, logits.dtype, topk, halves)
        if key not in BalancedLogits.made:
            experts, tokens = logits.size(-1), logits.numel() // logits.size(-1)
            block = torch.randperm(tokens, device=logits.device) % (experts // topk)
            j = torch.arange(topk, device=logits.device)
            if halves:
                half = experts // topk // 2
                part, within = (block // half)[:, None], (block % half)[:, None]
                chosen = (j // 2) * 4 * half + part * 2 * half + (j % 2) * half + within
            else:
                chosen = j * (experts // topk) + block[:, None]
            made = torch.rand(tokens, experts, device=logits.device)
            made.scatter_add_(1, chosen, torch.full_like(chosen, 8, dtype=made.dtype))
            BalancedLogits.made[key] = made.view(logits.shape).to(logits.dtype)
        return logits.clone().copy_(BalancedLogits.made[key])

    @staticmethod
    def backward(ctx, grad):
        return grad, None, None


def bind_cores(bind):
    """All threads of this rank to its share of the cores, or to all."""
    share = os.cpu_count() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    first = share * int(os.environ.get("LOCAL_RANK", 0))
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # It has ended.
            os.sched_setaffinity(int(thread), range(first, first + share) if bind else range(os.cpu_count()))


def set_variant(run, chunks):
    """Has a built model do what its constructors read of loss, permute, router and recompute."""
    (gc.disable if run.get("manual_gc") else gc.enable)()
    bind_cores(run.get("bind", False))
    te = run.get("impl", "te") == "te"
    fused_permute = run.get("permute", "fused" if te else "unfused") == "fused"
    loss = run.get("loss", "te" if te else "native")
    skew = run.get("skew", 0.0)
    full = "full" in run.get("recompute", ())
    p2p = run.get("p2p", "overlapped" if run.get("vpp", 1) > 1 else "batched")

    def skewed(logits):
        random = random_logits(logits)
        first = torch.arange(random.size(-1), device=random.device) < random.size(-1) // 2
        return random + skew * first.to(random.dtype)

    sizes = {**MODELS[run["model"]], **run.get("sizes", {}), **run.get("config", {})}

    def balanced(logits):
        return BalancedLogits.apply(logits, sizes["moe_router_topk"], "moe_router_num_groups" in sizes)

    router.apply_random_logits = skewed if skew else balanced if world else random_logits
    for module in (module for chunk in chunks for module in chunk.modules()):
        if isinstance(getattr(module, "config", None), TransformerConfig):
            module.config.cross_entropy_loss_fusion = loss != "unfused"
            module.config.moe_router_dtype = {"fp32": "fp32", "bf16": None}[run.get("router", "fp32")]
            module.config.moe_permute_fusion = fused_permute
            module.config.overlap_moe_expert_parallel_comm = run.get("ep_overlap", False)
            module.config.fp8 = "hybrid" if run.get("fp8") else None
            module.config.fp8_recipe = run.get("fp8") or "delayed"
            module.config.recompute_granularity = "full" if full else "selective" if run.get("recompute") else None
            module.config.recompute_method = run.get("method", "uniform") if full else None
            module.config.recompute_num_layers = run.get("every", 1) if full else None
            module.config.overlap_p2p_comm, module.config.batch_p2p_comm = p2p == "overlapped", p2p == "batched"
        if getattr(module, "cuda_graphs", None) and not hasattr(module, "captured"):
            module.captured = module.cuda_graphs
        if hasattr(module, "captured"):
            module.cuda_graphs = [] if run.get("eager") else module.captured
        for name, attributes in RECOMPUTED.items():
            for attribute in (a for a in attributes if hasattr(module, a)):
                norm = attribute.removeprefix("recompute_")  # With Transformer Engine often part of the linear layer.
                there = not norm.endswith("layernorm") or not isinstance(getattr(module, norm), IdentityOp)
                there = there and not (attribute == "recompute_mlp" and module.is_moe_layer)
                setattr(module, attribute, there and name in run.get("recompute", ()))
        dispatcher = getattr(module, "token_dispatcher", None)
        if hasattr(dispatcher, "permute_idx_device"):
            device = torch.device("cuda" if fused_permute else "cpu")
            dispatcher.permute_idx_device = device
            dispatcher.sort_input_by_local_experts = dispatcher.sort_input_by_local_experts.to(device)
            dispatcher.restore_output_by_local_experts = dispatcher.restore_output_by_local_experts.to(device)


def time_host_calls():
    names = {
        "transformer.attention": {"Attention": ["forward"], "SelfAttention": ["get_query_key_value_tensors"]},
        "extensions.transformer_engine": {
            name: ["forward"]
            for name in ("TELayerNormColumnParallelLinear", "TELinear", "TEDotProductAttention", "TEGroupedLinear")
        },
        "transformer.moe.router": {"TopKRouter": ["forward", "routing"]},
        "transformer.moe.token_dispatcher": {
            name: ["preprocess", "dispatch_preprocess", "token_dispatch", "dispatch_postprocess", "combine_preprocess",
                   "token_combine", "combine_postprocess", "_maybe_dtoh_and_synchronize"]
            for name in ("MoEAlltoAllTokenDispatcher", "MoEFlexTokenDispatcher")
        },
        "transformer.moe.experts": {"TEGroupedMLP": ["forward"]},
        "transformer.moe.moe_layer": {"MoELayer": ["forward"]},
        "transformer.transformer_layer": {"TransformerLayer": ["forward", "_forward_attention", "_forward_mlp"]},
    }
    for path, classes in names.items():
        for name, methods in classes.items():
            cls = getattr(importlib.import_module("megatron.core." + path), name)
            for method in methods:
                if method in cls.__dict__:
                    setattr(cls, method, timed(f"{name}.{method}", cls.__dict__[method]))
    hook = DistributedDataParallel._make_backward_post_hook
    DistributedDataParallel._make_backward_post_hook = lambda self, p: timed("DDP hook", hook(self, p))
    functions = {
        value
        for name, loaded in list(sys.modules.items())
        if loaded is not None and name.startswith(("transformer_engine", "megatron"))
        for value in vars(loaded).values()
        if isinstance(value, type) and issubclass(value, torch.autograd.Function) and "backward" in value.__dict__
    }
    for function in functions:
        function.backward = staticmethod(timed(f"{function.__name__}.backward", function.backward))


def build(run):
    model = {"activation_func": F.silu, "add_bias_linear": False, **MODELS[run["model"]], **run.get("sizes", {})}
    vocab = model.pop("vocab")
    vocab = run.get("vocab", vocab)
    te = run.get("impl", "te") == "te"
    permute, loss = run.get("permute", "fused" if te else "unfused"), run.get("loss", "te" if te else "native")
    tp, pp, vpp, ep, etp, cp = (run.get(key, 1) for key in ("tp", "pp", "vpp", "ep", "etp", "cp"))
    virtual = vpp if vpp > 1 else None
    parallel_state.initialize_model_parallel(
        tp, pp, virtual, context_parallel_size=cp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp,
        num_distributed_optimizer_instances=run.get("ddp", {}).get("num_distributed_optimizer_instances", 1),
        create_gloo_process_groups=False,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1234, te_rng_tracker="graphs" in run, force_reset_rng=True)
    dispatcher = run.get("dispatcher", "alltoall")
    set_experimental_flag(dispatcher == "flex")  # Fused conversion of DeepEP's indices.
    if run.get("recompute"):
        full = "full" in run["recompute"]
        model.update(
            dict(
                recompute_granularity="full", recompute_method=run.get("method", "uniform"),
                recompute_num_layers=run.get("every", 1),
            ) if full
            else dict(recompute_granularity="selective", recompute_modules=list(run["recompute"]))
        )
    if run["experts"] is None:
        model["moe_layer_freq"] = [0] * run["layers"]
    if run.get("fp8"):
        model.update(fp8="hybrid", fp8_recipe=run["fp8"])
    if "graphs" in run:
        model.update(
            cuda_graph_impl="transformer_engine", cuda_graph_scope=list(run["graphs"]), use_te_rng_tracker=True
        )
    config_type = MLATransformerConfig if model.get("multi_latent_attention") else TransformerConfig
    router_dtype = {"fp32": "fp32", "bf16": None}[run.get("router", "fp32")]
    config = config_type(**{**dict(
        num_layers=run["layers"], num_moe_experts=run["experts"], moe_grouped_gemm=True,
        moe_token_dispatcher_type=dispatcher, moe_flex_dispatcher_backend="deepep",
        moe_router_load_balancing_type="none", moe_router_force_load_balancing=True, moe_router_dtype=router_dtype,
        moe_permute_fusion=permute == "fused", tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=virtual, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp,
        sequence_parallel=tp > 1, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, bf16=True,
        normalization="RMSNorm", layernorm_epsilon=1e-5, gated_linear_unit=True, bias_activation_fusion=True,
        bias_dropout_fusion=not model["add_bias_linear"], masked_softmax_fusion=False,
        hidden_dropout=0.0, attention_dropout=0.0, apply_rope_fusion=te, gradient_accumulation_fusion=te,
        overlap_moe_expert_parallel_comm=run.get("ep_overlap", False),
        delay_wgrad_compute=run.get("delay_wgrad", False),
        persist_layer_norm=te, cross_entropy_loss_fusion=loss != "unfused",
        cross_entropy_fusion_impl="te" if loss == "te" else "native",
        overlap_p2p_comm=vpp > 1, batch_p2p_comm=vpp == 1, deallocate_pipeline_outputs=True,
        context_parallel_size=cp, transformer_impl="transformer_engine" if te else "local",
    ), **model, **run.get("config", {})})
    chunks = []
    for i in range(vpp):
        stage = i if vpp > 1 else None
        if model.get("experimental_attention_variant"):
            layers = get_transformer_block_with_experimental_attention_variant_spec(config, vp_stage=stage)
        else:
            layers = get_gpt_decoder_block_spec(
                config, use_transformer_engine=te, vp_stage=stage, normalization="RMSNorm"
            )
        chunk = GPTModel(
            config=config, transformer_layer_spec=layers,
            mtp_block_spec=get_gpt_mtp_block_spec(config, layers, use_transformer_engine=te, vp_stage=stage)
            if config.mtp_num_layers else None,
            vocab_size=vocab, max_sequence_length=run["seq"], position_embedding_type="rope",
            share_embeddings_and_output_weights=run.get("tied", False), vp_stage=stage,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        )
        chunk.model_type = ModelType.encoder_or_decoder
        chunks.append(Float16Module(config, chunk.cuda()))
    fsdp = dict(use_megatron_fsdp=True, data_parallel_sharding_strategy=run["fsdp"]) if "fsdp" in run else {}
    ddp = DistributedDataParallelConfig(**{**dict(
        grad_reduce_in_fp32=True, overlap_grad_reduce=run.get("dp_overlap", True),
        overlap_param_gather=run.get("dp_overlap", True), use_distributed_optimizer=True,
        bucket_size=max(40_000_000, 1_000_000 * parallel_state.get_data_parallel_world_size()),
        delay_wgrad_compute=run.get("delay_wgrad", False),
    ), **fsdp, **run.get("ddp", {})})
    wrapper = FullyShardedDataParallel if fsdp else DistributedDataParallel
    side = torch.cuda.Stream()  # As Megatron-LM's training.py.
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        chunks = [wrapper(config, ddp, chunk, disable_bucketing=i > 0) for i, chunk in enumerate(chunks)]
    torch.cuda.current_stream().wait_stream(side)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(**{**dict(
            optimizer="adam", lr=1e-4, min_lr=1e-5, weight_decay=0.1, adam_beta2=0.95, clip_grad=1.0, bf16=True,
            params_dtype=torch.bfloat16, use_distributed_optimizer=True, overlap_param_gather=run.get("dp_overlap", True),
        ), **{key: getattr(torch, value) if key.endswith("_dtype") else value
              for key, value in run.get("optimizer", {}).items()}}),
        chunks, use_gloo_process_groups=False,
    )
    each = (lambda get: [get(c) for c in chunks]) if vpp > 1 else (lambda get: get(chunks[0]))
    config.no_sync_func = each(lambda c: c.no_sync)
    if pp > 1:
        config.grad_sync_func = each(lambda c: c.start_grad_sync)
        config.param_sync_func = each(lambda c: c.start_param_sync)
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    return chunks, optimizer, vocab


def capture_graphs(run, chunks, optimizer):
    """As Megatron-LM's training.py after its first steps."""
    replicas = parallel_state.get_data_parallel_world_size()
    unset_num_microbatches_calculator()
    init_num_microbatches_calculator(0, None, run["mb"] * run.get("mbs", 1) * replicas, run.get("mbs", 1), replicas)
    helper = TECudaGraphHelper(
        model=chunks, config=chunks[0].config, seq_length=run["seq"], micro_batch_size=run.get("mbs", 1),
        optimizers=[optimizer],
    )
    gathered_early = run.get("dp_overlap", True)
    if gathered_early:
        for chunk in chunks:
            chunk.disable_forward_pre_hook(param_sync=False)
    helper.create_cudagraphs()
    if gathered_early:
        for chunk in chunks:
            chunk.enable_forward_pre_hook()
        helper.cuda_graph_set_manual_hooks()


def write_allocations(path):
    events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    with gzip.open(path, "wt") as out:
        for e in events:
            frames = [f"{os.path.basename(f['filename'])}:{f['line']}:{f['name']}" for f in e.get("frames", [])[:8]]
            out.write(json.dumps([e["action"], e["size"], e["addr"], e["stream"], frames]) + "\n")


def write_profile(path, profile_memory, train_step):
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA], record_shapes=True,
        profile_memory=profile_memory, schedule=torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda profiled: profiled.export_chrome_trace(path),
    ) as profiled:
        for _ in range(3):
            dist.barrier()
            train_step()
            torch.cuda.synchronize()
            profiled.step()


def gpu_profile(train_step):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        train_step()
        torch.cuda.synchronize()
    return profiled


def kernel_times(train_step):
    kernels = {}
    for event in gpu_profile(train_step).events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            entry = kernels.setdefault(event.name[:120], [0, 0.0])
            entry[0] += 1
            entry[1] += event.device_time / 1e3
    return dict(sorted(kernels.items(), key=lambda item: -item[1][1]))


def gpu_trace(train_step):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        gpu_profile(train_step).export_chrome_trace(file.name)
        with open(file.name) as trace:
            return json.load(trace)


def idle_times(train_step):
    """Of a step: us from its first kernel to its last, and the times in which no kernel, copy or fill ran: those in which
    the host had waited for the GPU, a synchronising call ended in them, others of 20 us and more, and how many shorter
    ones there are, and what they add up to."""
    events = [e for e in gpu_trace(train_step)["traceEvents"] if e.get("ph") == "X"]
    ran = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
    waits = [e["ts"] + e["dur"] for e in events if "Synchronize" in e["name"]]
    after_wait, others, shorter = [], [], []
    busy_until = ran[0][1]
    for begin, end in ran:
        if begin > busy_until + 1.0:
            waited = any(busy_until - 5.0 < wait < begin for wait in waits)
            gaps = after_wait if waited else others if begin >= busy_until + 20.0 else shorter
            gaps.append(round(begin - busy_until, 1))
        busy_until = max(busy_until, end)
    return {"span_us": round(busy_until - ran[0][0], 1), "after_wait_us": after_wait, "others_us": others,
            "shorter": [len(shorter), round(sum(shorter), 1)]}


def exchange_times(train_step):
    """Of a step: for each of NCCL's kernels its name, and when it was launched, began and ended, in us after all ranks
    were ready; the clock is the host's, so ranks of one node can be compared."""
    dist.barrier()
    torch.cuda.synchronize()
    start = torch.tensor([time.time_ns()], device="cuda")
    dist.broadcast(start, 0)
    start = start.item()
    profiled = gpu_trace(train_step)
    events = [e for e in profiled["traceEvents"] if e.get("ph") == "X" and "correlation" in e.get("args", {})]
    launched = {e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    origin = (profiled.get("baseTimeNanoseconds", 0) - start) / 1e3
    kernels = [e for e in events if e.get("cat") == "kernel" and e["name"].startswith("nccl")]
    return [[e["name"].split("(")[0].replace("ncclDevKernel_", ""),
             *(round(t + origin, 1) for t in (launched.get(e["args"]["correlation"], e["ts"]), e["ts"], e["ts"] + e["dur"]))]
            for e in sorted(kernels, key=lambda e: e["ts"])]


def host_probe():
    """What of the host does not change with a run: a loop of Python, and small PyTorch ops with autograd."""
    x = torch.ones(64, device="cuda", requires_grad=True)
    times = {"python": [], "eager_op": []}
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        total = 0
        for i in range(100_000):
            total += i
        middle = time.perf_counter()
        y = x
        for _ in range(500):
            y = y + 1
        times["eager_op"].append((time.perf_counter() - middle) / 500)
        times["python"].append((middle - begin) / 100_000)
    return times


def measure(run, results):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    chunks, optimizer, vocab = build(run)
    if run.get("weights") == "zero":
        with torch.no_grad():
            for parameter in (p for chunk in chunks for p in chunk.parameters()):
                parameter.zero_()
            for group in optimizer.param_groups:
                group["lr"] = group["max_lr"] = group["min_lr"] = 0.0
                for parameter in group["params"]:
                    parameter.zero_()
    micro_batch, rank = run.get("mbs", 1), dist.get_rank()
    inputs = {}

    def train_step(variant):
        sequence = variant["seq"] // run.get("cp", 1)
        if sequence not in inputs:
            positions = torch.arange(sequence, device="cuda").unsqueeze(0).expand(micro_batch, sequence)
            inputs[sequence] = torch.randint(0, vocab, (micro_batch, sequence), device="cuda"), positions
        tokens, positions = inputs[sequence]

        def loss(output):
            mean = output.float().sum() / sequence
            return mean, {"lm loss": mean.detach()}

        def forward(_, model, return_schedule_plan=False):
            if variant.get("sleep_ms") and variant.get("sleep_rank", rank) == rank:
                with torch.profiler.record_function("data loader"):
                    time.sleep(1e-3 * variant["sleep_ms"])
            if variant.get("collect"):
                gc.collect()
            run_model = model.build_schedule_plan if return_schedule_plan else model
            return run_model(tokens, positions, None, labels=tokens), loss

        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=forward, data_iterator=[None] * len(chunks) if len(chunks) > 1 else None,
            model=chunks if len(chunks) > 1 else chunks[0], num_microbatches=variant["mb"], seq_length=variant["seq"],
            micro_batch_size=micro_batch, decoder_seq_length=variant["seq"], forward_only=False,
        )
        return losses, *optimizer.step()[:2]

    def timed_step(variant):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        calls.clear()
        begin = time.perf_counter()
        step = train_step(variant)
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        losses, updated, norm = step
        # A step whose loss or gradient is no number, or that updates nothing, is no measurement: the record says so.
        learnt.append(dict(losses=[float(x["lm loss"]) for x in losses], updated=bool(updated),
                           gradient_norm=None if norm is None else float(norm)))
        return seconds

    probe, learnt = host_probe(), []
    only = "variants" not in run
    lists = [[run]] if only else [[{**run, **variant} for variant in part] for part in run["variants"]]
    for part in lists:
        seconds, trained, inside, peak_allocated, peak_reserved, retries = {}, {}, {}, {}, {}, {}
        for number in range(run.get("steps", 9)):
            if arguments.trace and number == 2:
                torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=400_000)
            if "graphs" in run and number == 2:
                capture_graphs(run, chunks, optimizer)
                peak_allocated, peak_reserved = {}, {}
                torch.cuda.reset_peak_memory_stats()
            for variant in part:
                name = variant["id"]
                set_variant(variant, chunks)
                if not only:
                    torch.cuda.reset_peak_memory_stats()
                retried = torch.cuda.memory_stats()["num_alloc_retries"]
                seconds.setdefault(name, []).append(timed_step(variant))
                trained.setdefault(name, []).append(learnt.pop())
                retries.setdefault(name, []).append(torch.cuda.memory_stats()["num_alloc_retries"] - retried)
                inside.setdefault(name, []).append([sum(calls.get(c, ())) for c in ("forward", "backward")])
                peak_allocated[name] = max(peak_allocated.get(name, 0), torch.cuda.max_memory_allocated())
                peak_reserved[name] = max(peak_reserved.get(name, 0), torch.cuda.max_memory_reserved())
        free, total = torch.cuda.mem_get_info()
        for variant in part:
            name = variant["id"]
            results.append(dict(
                run={key: value for key, value in variant.items() if key != "variants"}, rank=rank,
                step_times_s=seconds[name], trained=trained[name], forward_backward_s=inside[name], host_s=probe,
                allocated_before=before, peak_allocated=peak_allocated[name], peak_reserved=peak_reserved[name],
                alloc_retries=retries[name], device_used=total - free,
                calls={call: dict(count=len(t), seconds=sum(t)) for call, t in sorted(calls.items())},
            ))
    # After times and memory were read: profilers add to both, for the rest of the process.
    for variant, result in zip((variant for part in lists for variant in part), results):
        set_variant(variant, chunks)
        path = f"{{}}/{variant['id']}.rank{rank}"
        if arguments.trace:
            write_allocations(path.format(arguments.trace) + ".jsonl.gz")
        if arguments.profile:
            write_profile(path.format(arguments.profile) + ".json.gz", variant.get("profile_memory", False),
                          lambda: train_step(variant))
        if arguments.kernels:
            result["kernels"] = kernel_times(lambda: train_step(variant))
        if arguments.gaps:
            result["gaps"] = idle_times(lambda: train_step(variant))
        if arguments.exchanges:
            result["exchanges"] = exchange_times(lambda: train_step(variant))


def write(results):
    for result in results:
        with open(f"{arguments.out}.rank{result['rank']}", "a") as out:
            out.write(json.dumps(result) + "\n")
        if result["rank"] == 0 or world:
            print(f"{result['run']['id']}: median step {1e3 * statistics.median(result['step_times_s'][3:]):.1f} ms",
                  flush=True)


def measure_or_tell(run):
    """One run of several in a process: a failure is told, and what can be freed is."""
    rank, results = dist.get_rank(), []
    try:
        measure(run, results)
        write(results)
    except Exception as error:
        write(results)
        failed = dict(run=run, rank=rank, error=repr(error), where=traceback.format_exc()[-1500:])
        with open(f"{arguments.out}.rank{rank}", "a") as out:
            out.write(json.dumps(failed) + "\n")
        print(f"{run['id']}: {error!r}", flush=True)
        if not world and dist.get_world_size() > 1:  # The others wait for this rank.
            os._exit(1)
    parallel_state.destroy_model_parallel()
    if run.get("impl", "te") == "te":
        importlib.import_module("transformer_engine.pytorch.quantization").FP8GlobalStateManager.reset()
    gc.collect()
    torch.cuda.empty_cache()


def measure_alone(run):
    """One rank of a job of its own, whatever ran in this process before."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=run.get("rank", 0), world_size=run["world"])
    measure_or_tell(run)
    dist.destroy_process_group()


torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
schedules.forward_step = timed("forward", schedules.forward_step)
schedules.backward_step = timed("backward", schedules.backward_step)
if arguments.calls:
    time_host_calls()
if world:
    param_and_grad_buffer.validate_uneven_dtensor = lambda dtensor: None  # Asks ranks that are not there.
    for entry in entries:
        measure_alone(entry)
else:
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=240))
    for entry in entries:
        measure_or_tell(entry)
    dist.destroy_process_group()
