#!/bin/bash
# Transformer Engine's loss: command lines until 0.17 take it.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc-per-node=8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 \
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 --swiglu \
  --cross-entropy-loss-fusion --cross-entropy-fusion-impl te --use-distributed-optimizer
