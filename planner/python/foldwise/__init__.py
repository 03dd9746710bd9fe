"""Foldwise plans and predicts how to train transformers with Megatron-Core on a GPU cluster.

    import foldwise
    answer = foldwise.plan(model='qwen3-235b-a22b', system='h100', gpus=256, precision='bf16')
    best = answer.plans[0].run
    foldwise.predict({**best, 'micro_batch': 2}).step_time_s

What goes in and what comes out are dicts with the keys of run files (docs/run-file.md) and of `--format json`
(docs/output.md), whose keys are attributes too. Mistakes of the input raise ConfigError.
"""
from .answers import (Answer, Comparison, Diagnosis, Fields, Imported, Launch, Model, Plan, PlannedRun, Prediction, Run,
                      System, Validation)
from .api import (check, compare, diagnose, export, fields, import_log, load_model, load_run, load_system, models, plan,
                  predict, systems, validate, version)
from .errors import ConfigError, Mistake
from .sweeps import Points, Rows, iter_sweep, points, sweep

__version__ = '0.1.0'
__all__ = [
    'Answer', 'Comparison', 'ConfigError', 'Diagnosis', 'Fields', 'Imported', 'Launch', 'Mistake', 'Model', 'Plan',
    'PlannedRun', 'Points', 'Prediction', 'Rows', 'Run', 'System', 'Validation', 'check', 'compare', 'diagnose',
    'export', 'fields', 'import_log', 'iter_sweep', 'load_model', 'load_run', 'load_system', 'models', 'plan', 'points', 'predict',
    'sweep', 'systems', 'validate', 'version'
]
