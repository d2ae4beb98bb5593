#!/usr/bin/env bash
# Runs a command in a memory cgroup of its own, as a Slurm job runs, and says on stderr what it was charged for at most. Exit: the command's,
# or 77 where no cgroup may be made.
#
#   bench/in_cgroup.sh BYTES COMMAND [ARGUMENT ...]
set -uo pipefail
limit=$1; shift
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
  group=/sys/fs/cgroup/unshard-$$ limit_file=memory.max swap_file=memory.swap.max peak_file=memory.peak events='memory.events'
  echo +memory > /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null
else
  group=/sys/fs/cgroup/memory/unshard-$$ limit_file=memory.limit_in_bytes swap_file=memory.swappiness peak_file=memory.max_usage_in_bytes events='memory.oom_control'
fi
mkdir "$group" 2>/dev/null && [ -f "$group/$limit_file" ] && echo "$limit" > "$group/$limit_file" || { echo "no cgroup may be made" >&2; rmdir "$group" 2>/dev/null; exit 77; }
echo 0 > "$group/$swap_file" 2>/dev/null  # what may be swapped out is no limit
( echo 0 > "$group/cgroup.procs" && exec "$@" )
code=$?
echo "cgroup of $limit bytes: at most $(cat "$group/$peak_file" 2>/dev/null || echo ?) charged; $(tr '\n' ' ' < "$group/$events")" >&2
rmdir "$group"
exit $code
