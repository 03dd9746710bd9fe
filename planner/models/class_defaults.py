#!/usr/bin/env python3
"""Writes class_defaults.json: the sizes that the configuration classes of Transformers have where a file is silent.

    class_defaults.py TRANSFORMERS

TRANSFORMERS: the package's folder (with models/), of a checkout or an unpacked wheel. Only families of families.json are
written. Transformers leaves out of a nested configuration (text_config) whatever is its class's default."""
import ast
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
SIZES = ('vocab_size', 'hidden_size', 'intermediate_size', 'num_hidden_layers', 'num_attention_heads', 'num_key_value_heads', 'head_dim',
         'moe_intermediate_size', 'num_experts', 'num_local_experts', 'n_routed_experts', 'num_experts_per_tok', 'n_shared_experts',
         'first_k_dense_replace', 'decoder_sparse_step', 'tie_word_embeddings')


def value_of(node):
    """A number or a truth value, which may be a product; None for anything else."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors = value_of(node.left), value_of(node.right)
        return None if None in factors else factors[0] * factors[1]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, (int, bool)) else None


def classes(folder):
    """(model_type, {size: default}) of each configuration class."""
    for path in sorted(folder.glob('models/*/configuration_*.py')):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ClassDef):
                continue
            values = {}
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None:
                    values[line.target.id] = value_of(line.value)
                elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name) and line.targets[0].id == 'model_type':
                    values['model_type'] = line.value.value
            if isinstance(values.get('model_type'), str):
                yield values.pop('model_type'), {key: values[key] for key in SIZES if values.get(key) is not None}


def main():
    folder = pathlib.Path(sys.argv[1])
    version = re.search(r'__version__ = "([^"]+)"', (folder / '__init__.py').read_text())[1]
    known = json.loads((HERE / 'families.json').read_text())['families']
    rows = {name: values for name, values in classes(folder) if name in known and values}
    about = f"Sizes that configuration classes of Transformers {version} have where a file is silent, made by planner/models/class_defaults.py."
    lines = ',\n'.join(f'    {json.dumps(name)}: {json.dumps(rows[name])}' for name in sorted(rows))
    (HERE / 'class_defaults.json').write_text(f'{{\n  "_about": {json.dumps(about)},\n  "families": {{\n{lines}\n  }}\n}}\n')


if __name__ == '__main__':
    main()
