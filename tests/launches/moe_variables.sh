# Variables in the middle of words, += on arrays, a default that uses a default, quotes within quotes, a heredoc.
cat > /tmp/hostfile <<EOF
node1 --num-layers 99
EOF
EP=${EP:-${DEFAULT_EP:-8}}
ARGS=(--num-layers 12 --hidden-size 2048 --num-attention-heads 16)
ARGS+=(--num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1024 --expert-model-parallel-size "${EP}")
ARGS+=(--moe-layer-freq "([0]*1+[1]*11)" --ffn-hidden-size 8192 --swiglu)   # 12 layers
ARGS+=(
  --seq-length 2048 --max-position-embeddings 2048   # tokens
  --micro-batch-size 4 --position-embedding-type rope --normalization RMSNorm
  --disable-bias-linear --vocab-size 50304 --bf16
)
if [[ -z "$USE_FSDP" ]]; then ARGS+=(--use-distributed-optimizer); else ARGS+=(--use-torch-fsdp2); fi
NPROC=8
python -m torch.distributed.run --nproc-per-node=${NPROC} --nnodes=2 pretrain_gpt.py "${ARGS[@]}"
