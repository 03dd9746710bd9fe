#!/usr/bin/env python3
"""Counts which launch scripts of checked-out repositories `foldwise import` reads, and why it refuses the others.

    python3 benchmarks/read_scripts.py build/release/planner/foldwise FOLDER... [--system NAME] [--gpus N] [--list FILE]

Counted are *.sh, *.sbatch and *.slurm that name a size of the model or of the parallelism beside something that starts
training with Megatron; and, apart, *.yaml of Megatron-LM's functional tests (MODEL_ARGS) and of Primus' trainers. None of
their text is kept: --list writes names and reasons."""
import argparse
import collections
import concurrent.futures
import pathlib
import re
import subprocess

STARTS = re.compile(r'torchrun|torch\.distributed|megatron (sft|pt|rlhf)|pretrain_\w+\.py|train\.py|main_ppo|train_async\.py|'
                    r'finetune\w*\.py|srun|deepspeed')
SIZES = re.compile(r'(num[-_]layers|micro[-_]batch[-_]size|tensor[-_]model[-_]parallel[-_]size|max[-_]tokens[-_]per[-_]gpu|'
                   r'context[-_]parallel[-_]size|expert[-_]model[-_]parallel[-_]size)[ =}"\']')
NOT_TRAINING = re.compile(r'convert|preprocess|eval|infer|export|generat|server|serve|deploy|tokeniz|checkpoint_util|'
                          r'estimate|auto_config|msdp/prompt', re.I)
# What trains with something else than Megatron's language models.
OTHER = re.compile(r'pretrain_(bert|t5|ict|vision)|run_text_generation|train[-_]backend[ ="]*fsdp|'
                   r'(finetune|train)_huggingface_|model: diffusion/')


VERL = re.compile(r'main_ppo|sft_trainer')


# Megatron-LM's functional tests, of other models than language models too, and Primus' experiments with Megatron.
# A test without arguments is none.
CONFIGURATION = re.compile(r'^MODEL_ARGS:[^\n]*\n(\s*(#[^\n]*)?\n)*\s+\S|^ +framework: megatron *$', re.M)


# Of Megatron-LM's tests: what generates text, and BERT. Their sizes are read, and a note says that a causal training of
# these sizes is priced.
GENERATES = re.compile(r'MODE: inference|num-tokens-to-generate|inference-repeat-n')


def configurations(folder):
    for path in sorted(folder.rglob('*.yaml')):
        text = path.read_text(errors='replace') if path.is_file() else ''
        if CONFIGURATION.search(text) and not OTHER.search(text):
            yield path


def scripts(folder):
    for path in sorted(folder.rglob('*')):
        if path.suffix not in ('.sh', '.sbatch', '.slurm') or not path.is_file():
            continue
        text = path.read_text(errors='replace')
        other = OTHER.search(text) or (VERL.search(text) and 'megatron' not in text)  # On PyTorch's FSDP.
        if (STARTS.search(text) and SIZES.search(text) and not other
                and not NOT_TRAINING.search(str(path.relative_to(folder)))):
            yield path


def read(program, path, options):
    system = 'gb200-nvl72' if 'gb200' in str(path) or 'gb_200' in str(path) else options.system
    command = [program, 'import', str(path), '--system', system]
    for gpus in ([], ['--gpus', str(options.gpus)]):
        try:
            done = subprocess.run(command + gpus, capture_output=True, text=True, timeout=300, errors='replace')
        except subprocess.TimeoutExpired:
            return 'foldwise took more than 300 s'
        if done.returncode == 0:
            return ''
        if 'give --gpus N' not in done.stderr and 'grid.world' not in done.stderr:
            break
    first = (done.stderr.strip().splitlines() or ['(no message)'])[0]
    return first.replace(str(path), path.name)


def kind(reason):
    """The reason without what is this script's alone."""
    reason = re.sub(r'^\S*?:(\d+:)? ?', '', reason)
    reason = re.sub(r'(found nothing that starts training with Megatron\'s arguments).*', r'\1', reason)
    return re.sub(r'"[^"]*"|\d+|\$\S+|\(.*?\)', '_', reason)[:150]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('program')
    parser.add_argument('folders', nargs='+', type=pathlib.Path)
    parser.add_argument('--system', default='h100-sxm-80gb')
    parser.add_argument('--gpus', type=int, default=64, help='of scripts that do not say it')
    parser.add_argument('--list', type=pathlib.Path)
    options = parser.parse_args()
    total, counts, rows = [0, 0], collections.Counter(), []
    for folder, what, found in [(folder, *kind) for folder in options.folders
                                for kind in (('scripts', scripts), ('configurations', configurations))]:
        paths = list(found(folder))
        if not paths:
            continue
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            reasons = list(pool.map(lambda path: read(options.program, path, options), paths))
        good = reasons.count('')
        print(f'{folder.name}: {good} of {len(paths)} {what} read', flush=True)
        texts = [path.read_text(errors='replace') if what == 'configurations' else '' for path in paths]
        for name, found in (('generate text', [bool(GENERATES.search(text)) for text in texts]),
                            ('are of BERT', ['bert' in path.parts[-3] for path in paths])):
            if what == 'configurations' and any(found):
                read_of = sum(not reason for reason, of in zip(reasons, found) if of)
                print(f'  {read_of} of {sum(found)} that {name}', flush=True)
        total = [total[0] + good, total[1] + len(paths)]
        for path, reason in zip(paths, reasons):
            rows.append(f'{path.relative_to(folder.parent)}\t{reason or "read"}\n')
            if reason:
                counts[kind(reason)] += 1
    print(f'all: {total[0]} of {total[1]} read')
    for reason, count in counts.most_common(25):
        print(f'{count:5} {reason}')
    if options.list:
        options.list.write_text(''.join(rows))


if __name__ == '__main__':
    main()
