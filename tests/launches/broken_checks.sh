torchrun --nproc-per-node 8 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
  --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 \
  --micro-batch-size 1 --bf16 \
  --tensor-model-parallel-size 2 --sequence-parallel \
  --overlap-param-gather \
  --main-grads-dtype bf16
