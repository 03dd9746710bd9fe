#!/bin/bash
export HF_TOKEN=<YOUR_HF_TOKEN>
WANDB=<YOUR-KEY-1> torchrun --nproc-per-node=8 --nnodes="$NNODES" scripts/performance/run_script.py \
  --model_name gpt_oss --model_size 120b --num_gpus 64 --micro_batch_size 2 --global_batch_size 128 --expert_model_parallel_size 16
