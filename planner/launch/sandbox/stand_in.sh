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

gpu_count() {  # gpu_count gpu:h100:8,tmpdisk:100: the number of GPUs.
  local part
  for part in ${1//,/ }; do
    [[ $part != gpu && $part != gpu:* ]] || { part=${part##*:} && echo "${part//gpu/1}" && return; }
  done
  echo "${1##*:}"
}

numbers() {  # numbers N: "0,1,..." of N GPUs.
  seq -s, 0 "$(($1 - 1))" 2>/dev/null
}

give() {  # give NAME=VALUE...: variables that a program gives to the command that it starts.
  local pair
  for pair; do
    [[ $pair != [A-Za-z_]*=* ]] || export "$pair"
  done
}

submit() {  # submit FILE OPTION...: sbatch with the file's "#SBATCH" words and then these, which win.
  local line word name= value tasks= on_node=
  local -a words=()
  while IFS= read -r line; do
    [[ $line =~ ^[[:space:]]*(#|$) ]] || break
    [[ $line != '#SBATCH'* ]] || { line=${line#'#SBATCH'} && words+=(${line%%#*}); }
  done <"$1" 2>/dev/null
  words+=("${@:2}")
  surround sbatch "${words[@]}"
  for word in "${words[@]}"; do
    case $word in
      --*=*) name=${word%%=*} value=${word#*=} ;;
      -[Nna][0-9]*) name=${word:0:2} value=${word:2} ;;
      -*) name=$word && continue ;;
      *) value=$word ;;
    esac
    case $name in
      --nodes | -N) export SLURM_NNODES=${value##*-} SLURM_JOB_NUM_NODES=${value##*-} ;;
      --ntasks | -n) tasks=$value ;;
      --ntasks-per-node | --tasks-per-node) on_node=$value && export SLURM_NTASKS_PER_NODE=$value ;;
      --gres | --gpus-per-node)
        value=$(gpu_count "$value")
        export SLURM_GPUS_PER_NODE=$value SLURM_GPUS_ON_NODE=$value CUDA_VISIBLE_DEVICES=$(numbers "$value") ;;
      --array | -a) export SLURM_ARRAY_TASK_ID=${value%%[!0-9]*} ;;
      --export) give ${value//,/ } ;;
    esac
  done
  [ -n "$tasks" ] || tasks=$((${SLURM_NNODES:-0} * ${on_node:-0}))
  [ "$tasks" = 0 ] || export SLURM_NTASKS=$tasks SLURM_NPROCS=$tasks
}

startable() {  # startable WORD: whether a command may begin with it.
  [ $# -gt 0 ] || return 1
  local base=${1##*/}
  [ -e "/run/foldwise/bin/$base" ] || [[ $base =~ ^(bash|sh|env|time|timeout|nice|stdbuf|eval)$ ]] ||
    { [[ $1 == *.sh ]] && [ -f "$1" ]; }
}

show_gpus() {  # show_gpus all|N|device=0,1: what docker's --gpus lets the container see.
  local value=${1//[\"\']/}
  case $value in
    *device=*) value=${value#*device=} && export NVIDIA_VISIBLE_DEVICES=${value%%,[a-z]*} ;;
    [0-9]*) export NVIDIA_VISIBLE_DEVICES=$(numbers "$value") ;;
  esac
}

inner() {  # inner WORD...: starts the command that stands behind the options; nothing if there is none.
  local i word contained=
  [[ $name != docker && $name != podman ]] || contained=yes
  for ((i = 1; i <= $#; ++i)); do
    word=${!i}
    case $word in
      --name | -J | --job-name | --container-name | --hostname | -h | --network | --ipc | -w | --workdir | --entrypoint)
        i=$((i + 1)) && continue ;;
      -genv | --genv | -env) i=$((i + 2)) && give "${@:i-1:1}=${!i}" && continue ;;  # Hydra: NAME VALUE.
      -e | --env | -x) i=$((i + 1)) && give "${!i}" && continue ;;
      --env=*) give "${word#--env=}" && continue ;;
      --export) i=$((i + 1)) && word=${!i} && give ${word//,/ } && continue ;;
      --export=*) word=${word#--export=} && give ${word//,/ } && continue ;;
      -e[A-Za-z_]*=*) [ -z "$contained" ] || give "${word#-e}" && continue ;;
      --gpus) [ -z "$contained" ] || { i=$((i + 1)) && show_gpus "${!i}"; } && continue ;;
      --gpus=*) [ -z "$contained" ] || show_gpus "${word#--gpus=}" && continue ;;
      -*) continue ;;
    esac
    if [[ $word =~ ^[A-Za-z_][A-Za-z_0-9]*= ]]; then export "$word" && continue; fi
    # Before a command stands the name of an image or a container, even if a program has that name.
    if startable "$word" && { [ -z "$contained" ] || ! startable "${@:i+1:1}"; }; then
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

past_options() {  # past_options LETTERS WORD...: `rest` is what stands behind options. LETTERS end those with a value.
  local valued=$1
  shift
  while [[ ${1:-} == -* ]]; do
    [[ ! $1 =~ ^-[A-Za-z]*[$valued]$ ]] || shift
    shift
  done
  rest=("$@")
}

shell_line() {  # shell_line WORD...: a shell gets the line of these words.
  surround "$name"
  [ $# -eq 0 ] || exec bash -c "$*"
  exit 0
}

tmux() {  # tmux COMMAND OPTION...: a new terminal runs a command, or one gets keys.
  while [ $# -gt 0 ] && [[ ! $1 =~ ^(new|neww|new-.*|split.*|respawn.*|send.*)$ ]]; do shift; done
  past_options stncxyeFfp "${@:2}"
  [[ ${1:-} != send* && ${#rest[@]} -gt 1 ]] || shell_line "${rest[@]:0:1}"
  start "${rest[@]}"
}

screen() {  # screen OPTION... COMMAND, or screen OPTION... -X stuff KEYS
  local keys
  if [[ " $* " == *' stuff '* ]]; then
    while [ "$1" != stuff ]; do shift; done
    keys=${2%$'\n'} && keys=${keys%'\n'}
    shell_line "${keys%^M}"
  fi
  past_options StcehpsT "$@"
  [ ${#rest[@]} -gt 1 ] || shell_line "${rest[@]}"
  start "${rest[@]}"
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
        [ "$word" != pip ] || pip "${@:i+1}"
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

version_of() {  # version_of NAME: the version of one of Python's packages, if it is known.
  local package=${1//-/_}
  [[ " $FOLDWISE_VERSIONS" =~ \ ${package,,}=([^ ]+) ]] && echo "${BASH_REMATCH[1]}"
}

pip() {  # pip list|freeze|show PACKAGE...: what the machine has; else nothing.
  local package version
  case ${1:-} in
    list | freeze)
      for package in $FOLDWISE_VERSIONS; do
        [ "$1" = list ] && echo "${package/=/ }" || echo "${package/=/==}"
      done ;;
    show)
      for package in "${@:2}"; do
        [[ $package != -* ]] || continue
        echo "Name: $package"
        version=$(version_of "$package") && echo "Version: $version"
      done ;;
  esac
  exit 0
}

node_gpus() {  # The number of GPUs that the node or the container has.
  local all=${NVIDIA_VISIBLE_DEVICES:-all}
  if [[ $all != [0-9G]* ]]; then echo "$FOLDWISE_GPUS_PER_NODE" && return; fi
  all=${all//[^,]/}
  echo $((${#all} + 1))
}

gpus() {  # gpus LINE: once for each GPU of a node, with its number.
  local i count=$(node_gpus)
  for ((i = 0; i < count; ++i)); do printf "$1\n" "$i"; done
}

query() {  # query FIELD,... FORMAT,... GPU: as nvidia-smi prints them, of one GPU or, if that is empty, of each.
  local field value i count=$(node_gpus)  # "@" in a value is the number of the GPU.
  local -a heads=() values=()
  for field in ${1//,/ }; do
    case $field in
      name | gpu_name) value=$FOLDWISE_GPU ;;
      index) value=@ ;;
      count) value=$count ;;
      memory.total | memory.free) value=$FOLDWISE_GPU_MEMORY ;;
      memory.used) value=0 ;;
      compute_cap) value=$FOLDWISE_CAPABILITY ;;
      uuid | gpu_uuid) value=GPU-@ ;;
      *) value='[N/A]' ;;
    esac
    if [[ $field == memory.* ]]; then
      field+=' [MiB]'
      [[ $2 == *nounits* ]] || value+=' MiB'
    fi
    heads+=("$field") values+=("$value")
  done
  printf -v value '%s, ' "${heads[@]}"
  [[ $2 == *noheader* ]] || echo "${value%, }"
  printf -v value '%s, ' "${values[@]}"
  for ((i = 0; i < count; ++i)); do
    [ -n "$3" ] && [ "$3" != "$i" ] || { field=${value//@/$i} && echo "${field%, }"; }
  done
}

smi() {
  local word fields= form= gpu= previous=
  [[ "$*" != *topo* ]] || exit 0
  for word; do
    case $word in
      --query-gpu=*) fields=${word#*=} ;;
      --format=*) form=${word#*=} ;;
      --id=*) gpu=${word#*=} ;;
    esac
    case $previous in
      --query-gpu) fields=$word ;;
      --format) form=$word ;;
      -i | --id) gpu=$word ;;
    esac
    previous=$word
  done
  case " $* " in
    *' -L '* | *' --list-gpus '*) gpus "GPU %d: $FOLDWISE_GPU (UUID: GPU-0)" ;;
    *) if [ -n "$fields" ]; then query "$fields" "$form" "$gpu"; else gpus "|   %d  $FOLDWISE_GPU "; fi ;;
  esac
  exit 0
}

case $name in
  python*) python "$@" ;;
  primus-cli) primus "$@" ;;
  sh) exec bash "$@" ;;
  pip*) pip "$@" ;;
  pdsh | clush) past_options wxfRtulgGXo "$@" && shell_line "${rest[@]}" ;;
  tmux | screen) "$name" "$@" ;;
  sleep | pkill | killall | fuser | apt* | yum | module | ml | modprobe | sysctl | systemctl | service) exit 0 ;;
  wget | curl | git | scp | rsync | aws | gsutil | azcopy | ossutil | hf | huggingface-cli | modelscope | wandb) exit 0 ;;
  ps | lsof | squeue | sinfo | scancel | ifconfig | ibstat | ibdev2netdev | rocminfo) exit 0 ;;
  tail)
    for word; do [[ $word != -f && $word != -F && $word != --follow* && $word != --pid* ]] || exit 0; done
    exec /usr/bin/tail "$@" ;;
  nohup | setsid | taskset)
    [ "$name" != taskset ] || { inner "$@" && exit 0; }
    while [[ ${1:-} == -* ]]; do shift; done
    start "$@" ;;
  nvidia-smi | rocm-smi) smi "$@" ;;
  nvcc) echo "Cuda compilation tools, release $(version_of cuda | cut -d. -f1,2)" && exit 0 ;;
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
  kubectl)
    while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done
    surround "$name"
    [ $# -lt 2 ] || start "${@:2}"
    exit 0 ;;
  conda | mamba | micromamba | uv)
    [ "${1:-}" != run ] || inner "${@:2}"
    exit 0 ;;
  torchrun) [[ " $* " != *' --no-python '* ]] || inner "$@" ;;
  srun | sbatch | salloc | jsrun | mpirun | mpiexec | docker | podman | singularity | apptainer | enroot | numactl | \
    nsys | ncu | ssh | sudo | unshare)
    export SLURM_PROCID=${SLURM_PROCID:-0} SLURM_LOCALID=${SLURM_LOCALID:-0} SLURM_NODEID=${SLURM_NODEID:-0}
    inner "$@" ;;
esac
record "$name" "$@"
