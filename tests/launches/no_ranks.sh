python pretrain_gpt.py --num-layers 2 --hidden-size 128 --num-attention-heads 4 --micro-batch-size 1 --seq-length 128 \
  --max-position-embeddings 128 --vocab-size 1000 --bf16
