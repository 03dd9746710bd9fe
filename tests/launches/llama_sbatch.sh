#!/bin/bash
#SBATCH --job-name=llama
#SBATCH -N 16
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8

# A string of arguments with backslashes, a condition, and srun with an inner shell.
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_FUSED_ATTN=1
TP=4
PP=${PP:-4}
FP8=1

OPTIONS=" \
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
  --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm \
  --position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights \
  --seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256 \
  --micro-batch-size 1 --global-batch-size 128 --bf16 \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --sequence-parallel \
  --num-virtual-stages-per-pipeline-rank 5 \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"

if [ "$FP8" -eq 1 ]; then
  OPTIONS="$OPTIONS --fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather"
else
  OPTIONS+=" --recompute-activations"
fi

run_cmd="python -u /opt/megatron/pretrain_gpt.py ${OPTIONS}"
srun -l --container-image=nemo sh -c "${run_cmd}"
