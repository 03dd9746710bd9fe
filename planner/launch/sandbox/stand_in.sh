#!/bin/bash -p
# Stands for every program of a cluster while `foldwise import` has bash evaluate a script: it writes a start down and
# succeeds. A program that starts another one (srun, docker, ssh, ...) starts that; its own words go before the other's.
name=${0##*/}
if [ "$name" = stand_in ]; then name=${1##*/} && shift; fi

record() {  # record WORD...: a start, with what stands around it and its environment.
  local -a around=()
  [ -z "${FOLDWISE_AROUND:-}" ] || IFS=$'\x1f' read -r -d '' -a around < <(printf '%s\x1f\0' "$FOLDWISE_AROUND")
  {
    flock 9
    printf 'start\0%s\0%s\0' "${#around[@]}" "$#"
    printf '%s\0' "${around[@]}" "$@"
    env -0
    printf 'end\0'
  } 9>>/run/foldwise/starts >&9
  exit 0
}

surround() {  # surround WORD...: what follows is started by that.
  local word
  for word; do FOLDWISE_AROUND+=${FOLDWISE_AROUND:+$'\x1f'}$word; done
  export FOLDWISE_AROUND
}

start() {  # start WORD...: a command inside of another one.
  case ${1##*/} in
    bash | sh | dash | zsh) shift && exec bash "$@" ;;
    *.sh) [ -f "$1" ] && exec bash "$@" ;;
    eval) shift && exec bash -c "$*" ;;
  esac
  [ ! -e "/run/foldwise/bin/${1##*/}" ] || exec "/run/foldwise/bin/${1##*/}" "${@:2}"
  type -P -- "$1" >/dev/null && exec "$@"
  exec /run/foldwise/stand_in "$@"
}

submit() {  # submit FILE OPTION...: sbatch with the file's "#SBATCH" words and then these, which win; Slurm's variables.
  local mark rest word name= value pair
  local -a words=()
  while read -r mark rest; do
    [ "$mark" != '#SBATCH' ] || words+=(${rest%%#*})
  done <"$1" 2>/dev/null
  words+=("${@:2}")
  surround sbatch "${words[@]}"
  for word in "${words[@]}"; do
    case $word in
      -*=*) name=${word%%=*} value=${word#*=} ;;
      -*) name=$word && continue ;;
      *) value=$word ;;
    esac
    case $name in
      --nodes | -N) export SLURM_NNODES=$value SLURM_JOB_NUM_NODES=$value ;;
      --ntasks | -n) export SLURM_NTASKS=$value SLURM_NPROCS=$value ;;
      --ntasks-per-node) export SLURM_NTASKS_PER_NODE=$value ;;
      --gres | --gpus-per-node) export SLURM_GPUS_PER_NODE=${value##*:} SLURM_GPUS_ON_NODE=${value##*:} ;;
      --export)
        for pair in ${value//,/ }; do
          [[ $pair != [A-Za-z_]*=* ]] || export "$pair"
        done ;;
    esac
  done
}

inner() {  # inner WORD...: starts the command that stands behind the options; nothing if there is none.
  local i word base
  for ((i = 1; i <= $#; ++i)); do
    word=${!i} base=${word##*/}
    case $word in
      --name | -J | --job-name | --container-name | --hostname | -h | --network | --ipc | -w | --workdir | --entrypoint)
        i=$((i + 1)) && continue ;;
      -e | --env | -x)
        i=$((i + 1)) && word=${!i} && [[ $word == [A-Za-z_]*=* ]] && export "$word"
        continue ;;
      --env=*=*) export "${word#--env=}" && continue ;;
      -*) continue ;;
    esac
    if [[ $word =~ ^[A-Za-z_][A-Za-z_0-9]*= ]]; then export "$word" && continue; fi
    if [ -e "/run/foldwise/bin/$base" ] || [[ $base =~ ^(bash|sh|env|time|timeout|nice|stdbuf|eval)$ ]] ||
      { [[ $word == *.sh ]] && [ -f "$word" ]; }; then
      if [ "$name" = sbatch ]; then submit "$word" "${@:1:i-1}"; else surround "$name" "${@:1:i-1}"; fi
      start "${@:i}"
    fi
    if [[ $word == *' '* && $i -eq $# ]]; then
      surround "$name" "${@:1:i-1}"
      exec bash -c "$word"
    fi
    if [ "$name" = sbatch ] && [ -f "$word" ]; then
      submit "$word" "${@:1:i-1}"
      exec bash "${@:i}"
    fi
  done
  if [ "$name" = sbatch ] && cat >"/tmp/job.$$" && [ -s "/tmp/job.$$" ]; then  # The job's script comes from stdin.
    submit "/tmp/job.$$" "$@"
    exec bash "/tmp/job.$$"
  fi
}

compute() {  # compute WORD...: a small computation runs, as far as there is a Python.
  [ -x /run/foldwise/python3 ] || exit 0
  unset BASH_ENV
  PYTHONPATH=/run/foldwise/modules${PYTHONPATH:+:$PYTHONPATH} timeout 5 /run/foldwise/python3 "$@"
}

python() {
  local i word options=0
  for word; do [[ $word != --?* ]] || options=$((options + 1)); done
  for ((i = 1; i <= $#; ++i)); do
    word=${!i}
    case $word in
      -c | - | -V | --version) compute "$@" && exit 0 || exit ;;
      -m)
        i=$((i + 1)) && word=${!i}
        [[ $word != json.tool ]] || { compute "$@"; exit; }
        record "$name" "$@" ;;
      -W | -X) i=$((i + 1)) ;;
      -*) ;;
      *)
        # A script whose output is used and that takes few options computes something.
        if [ "$options" -lt 5 ] && [ -f "$word" ] && [ "$(readlink /proc/self/fd/1)" != "$FOLDWISE_OUTPUT" ]; then
          compute "$@" 2>/dev/null
        fi
        record "$name" "$@" ;;
    esac
  done
  [ $# -gt 0 ] || compute -
  exit 0
}

primus() {  # primus-cli MODE ... -- train pretrain --config FILE ...: with the text of that file.
  local i config=
  while [ $# -gt 0 ] && [ "$1" != train ]; do shift; done
  [ $# -gt 0 ] || exit 0
  for ((i = 1; i < $#; ++i)); do
    [[ ${!i} != --config ]] || { i=$((i + 1)) && config=${!i}; }
  done
  [ ! -f "$config" ] || FOLDWISE_FILE=$(head -c 65536 -- "$config")
  export EXPERIMENT_FILE=$config EXPERIMENT_TEXT=${FOLDWISE_FILE:-}
  record primus "$@"
}

gpus() {  # gpus LINE: once for each GPU of a node, with its number.
  local i
  for ((i = 0; i < FOLDWISE_GPUS_PER_NODE; ++i)); do printf "$1\n" "$i"; done
}

case $name in
  python*) python "$@" ;;
  primus-cli) primus "$@" ;;
  sh) exec bash "$@" ;;
  sleep | pkill | killall | fuser | pip* | apt* | yum | module | ml | modprobe | sysctl | systemctl | service) exit 0 ;;
  wget | curl | git | scp | rsync | aws | gsutil | azcopy | ossutil | hf | huggingface-cli | modelscope | wandb) exit 0 ;;
  ps | lsof | squeue | sinfo | scancel | ifconfig | ibstat | ibdev2netdev | rocminfo | kubectl) exit 0 ;;
  tail)
    for word; do [[ $word != -f && $word != -F && $word != --follow* && $word != --pid* ]] || exit 0; done
    exec /usr/bin/tail "$@" ;;
  nohup | setsid | taskset)
    [ "$name" != taskset ] || { inner "$@" && exit 0; }
    while [[ ${1:-} == -* ]]; do shift; done
    start "$@" ;;
  nvidia-smi | rocm-smi)
    [[ "$*" != *topo* ]] || exit 0
    case "$*" in
      *-L* | *--list-gpus*) gpus "GPU %d: $FOLDWISE_GPU (UUID: GPU-0)" ;;
      *=count* ) gpus "$FOLDWISE_GPUS_PER_NODE" ;;
      *=index*) gpus '%d' ;;
      *memory*) gpus '81559' ;;
      *--query-gpu*) gpus "$FOLDWISE_GPU" ;;
      *) gpus "|   %d  $FOLDWISE_GPU " ;;
    esac
    exit 0 ;;
  scontrol)
    [[ "$*" != *hostnames* ]] || for ((i = 0; i < ${SLURM_NNODES:-1}; ++i)); do echo "node$i"; done
    exit 0 ;;
  ip) echo '1.0.0.0 via 127.0.0.1 dev eth0 src 127.0.0.1' && exit 0 ;;
  ray)
    [ "${1:-} ${2:-}" = 'job submit' ] || exit 0
    surround "$name"
    while [ $# -gt 0 ] && [ "$1" != -- ]; do surround "$1" && shift; done
    [ $# -lt 2 ] || start "${@:2}"
    exit 0 ;;
  conda | mamba | micromamba | uv)
    [ "${1:-}" != run ] || inner "${@:2}"
    exit 0 ;;
  torchrun) [[ " $* " != *' --no-python '* ]] || inner "$@" ;;
  srun | sbatch | mpirun | mpiexec | docker | podman | singularity | apptainer | enroot | numactl | nsys | ncu | ssh | sudo | unshare)
    export SLURM_PROCID=${SLURM_PROCID:-0} SLURM_LOCALID=${SLURM_LOCALID:-0} SLURM_NODEID=${SLURM_NODEID:-0}
    inner "$@" ;;
esac
record "$name" "$@"
