#!/bin/bash
torchrun --nproc-per-node=4 --nnodes="$NNODES" pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 \
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000
