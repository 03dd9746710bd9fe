# The first process of the sandbox: bash runner SCRIPT ARGUMENT... . What it makes lives in the sandbox's own tmpfs.
trap '' XFSZ                                   # A file that grows too large is an error of who writes it, no signal.
ulimit -f 16384 -v 4194304 -t 20 -n 256 -u 400 2>/dev/null  # KiB, KiB, seconds, files, processes
printf 'ready\0' >>/run/foldwise/starts
mkdir -p /etc "$HOME" /tmp "${1%/*}"
echo 'user:x:1000:1000::/home/user:/bin/bash' >/etc/passwd
echo '127.0.0.1 localhost' >/etc/hosts
while IFS= read -r -d '' kind && IFS= read -r -d '' path && IFS= read -r -d '' target; do
  [ -e "$path" ] && [ "$kind" != program ] && continue
  case $kind in
    folder) mkdir -p -- "$path" ;;
    file) mkdir -p -- "${path%/*}" && : >"$path" ;;
    link) mkdir -p -- "${path%/*}" && ln -sf -- "$target" "$path" ;;
    program) mkdir -p -- "${path%/*}" && ln -sf /run/foldwise/stand_in "$path" ;;
  esac
done </run/foldwise/made 2>/dev/null
mkdir -p -- "$FOLDWISE_FOLDER"
cd -- "$FOLDWISE_FOLDER" || exit
unset FOLDWISE_FOLDER
FOLDWISE_OUTPUT=$(readlink /proc/$$/fd/1)
export FOLDWISE_OUTPUT BASH_ENV=/run/foldwise/prelude
bash "$@"
status=$?
# What it left in the background may be about to start training: the sandbox ends with this process.
for _ in {1..60}; do
  others=
  for process in /proc/[0-9]*; do [[ ${process#/proc/} = 1 || ${process#/proc/} = "$$" ]] || others=1; done
  [ -n "$others" ] || break
  sleep 0.05
done
exit $status
