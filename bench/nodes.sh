#!/usr/bin/env bash
# The rows of bench/README.md about disks, ranks and memory: durable against the floor (warm and cold), each way of writing a file together,
# four ranks, a small cgroup, many shards, a tiny model. One table per row; a rule that is not met is said, and the script ends with an error.
#
#   bench/nodes.sh [ROW ...]       rows: durable cold collective four memory many tiny (default: all); variables: see inputs.sh
set -euo pipefail
source "$(dirname "$0")/inputs.sh"

merge() {  # RANKS [OPTION ...]
  echo "mpirun --oversubscribe -np $1 $unshard merge --local-dir {in} --target-dir {out}/m ${*:2}"
}

durable() {
  make_f15
  measure "qwen2.5-1.5b bf16, two ranks, verified" f15 --payload 'model_*' --reference "$data/r15" --builtin floor --baseline floor --reps "$reps" \
    --cmd "unshard=$(merge 2)" --cmd "no-verify=$(merge 2 --no-verify)" \
    --require 'durable unshard <= 1.2 * floor' --require 'equal unshard' --require 'equal no-verify'
}
cold() {
  make_f05; make_f15
  for each in 05 15; do
    measure "f$each, cold" f$each --payload 'model_*' --cold --reference "$data/r$each" --builtin floor --baseline floor --reps "$reps" \
      --cmd "unshard=$(merge 2)" --require 'durable unshard <= 1.1 * floor' --require 'equal unshard'
  done
}
collective() {
  make_f15
  local commands=() rules=() name ranks
  for ranks in 2 4; do
    commands+=(--cmd "posix$ranks=$(merge $ranks --io posix)")
    for name in romio:io:^ompio vulcan:fcoll:vulcan dynamic_gen2:fcoll:dynamic_gen2 individual:fcoll:individual; do
      local label=${name%%:*}$ranks setting=${name#*:}
      commands+=(--cmd "$label=env OMPI_MCA_${setting%%:*}=${setting#*:} $(merge $ranks --io collective)")
      rules+=(--require "equal $label")
      [ $ranks = 4 ] || rules+=(--require "durable $label <= 1.15 * posix2")
    done
  done
  measure "collective writes" f15 --payload 'model_*' --reference "$data/r15" --baseline posix2 --reps "$reps" "${commands[@]}" "${rules[@]}"
}
four() {
  make_f15
  measure "four ranks" f15 --payload 'model_*' --reference "$data/r15" --baseline two --reps "$reps" --opens --cmd "two=$(merge 2)" --cmd "four=$(merge 4)" \
    --cmd "four-no-verify=$(merge 4 --no-verify)" --require 'durable four <= 1.3 * two' --require 'read four-no-verify <= 1.01 * payload' \
    --require 'opens four <= 2 * files' --require 'equal four'
}
memory() {
  make_f15
  measure "3 GB in a cgroup of 512 MiB" f15 --payload 'model_*' --reference "$data/r15" --baseline free --reps "$reps" --cmd "free=$(merge 2)" \
    --cmd "cgroup=$here/in_cgroup.sh 536870912 $(merge 2)" --cmd "cgroup4=$here/in_cgroup.sh 536870912 $(merge 4)" \
    --cmd "collective=$here/in_cgroup.sh 536870912 $(merge 2 --io collective)" --cmd "low=$(merge 2 --low-cpu-mem-usage)" \
    --require 'anon free <= 620MB' --require 'anon low <= 180MB' --require 'equal cgroup' --require 'equal cgroup4' --require 'equal collective'
}
many() {
  make_many
  measure "check of 1,024 files with 518,144 chunks" many --payload 'model_*' --builtin torch-load --baseline torch-load --reps 3 --opens \
    --cmd "check=mpirun -np 2 $unshard check --local-dir {in}" --require 'wall check <= 0.04 * torch-load' --require 'opens check <= 1 * files'
}
# The peer starts the launcher four times with a program that does nothing, and syncs the files that a merge syncs.
tiny() {
  local tiny=$here/../tests/cases/fsdp/two_ranks_bf16
  local start="mpirun -np 2 true"
  echo "== a tiny model, without verification"
  "$here/compare.py" --input "$tiny/input" --payload 'model_*' --out-root "$data/out" --reps "$((reps * 2))" --baseline peer \
    --cmd "true=$start" --cmd "peer=sh -c '$start; $start; $start; $start; cp -r $tiny/expected {out}/m; sync {out}/m/* {out}/m {out}'" \
    --cmd "unshard=mpirun -np 2 $unshard merge --local-dir {in} --target-dir {out}/m --no-verify" --require 'wall unshard <= 1 * peer' || failed+=(tiny)
}

run_rows durable cold collective four memory many tiny -- "$@"
