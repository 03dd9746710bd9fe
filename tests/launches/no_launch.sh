#!/bin/bash
pip install megatron-core
python preprocess_data.py --input x.json
