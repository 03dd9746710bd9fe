export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc-per-node 8 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 \
  --micro-batch-size one \
  --tensor-model-parallel-size $TP \
  --recompute-granularity block \
  --swiglu yes --bf16
