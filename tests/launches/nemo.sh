#!/bin/bash
# Our own: NeMo 2's command line.
nemo llm pretrain --factory llama3_8b trainer.num_nodes=2 trainer.devices=8 \
  trainer.strategy.tensor_model_parallel_size=2 data.global_batch_size=128 data.micro_batch_size=2 data.seq_length=8192
