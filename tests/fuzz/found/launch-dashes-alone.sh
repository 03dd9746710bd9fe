#!/bin/bash
#SBATCH --nodes=2
#SBATCH -- 4
#SBATCH - 4
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096
