#!/usr/bin/env bash
# The FSDP rows of bench/README.md: makes the inputs once under DATA, then measures this build beside the named peers, in one run per row.
#
#   bench/fsdp.sh [ROW ...]        rows: small medium large many start (default: all); variables: see inputs.sh
set -euo pipefail
source "$(dirname "$0")/inputs.sh"
mpirun="mpirun --oversubscribe -np 2"

row() {  # NAME INPUT REFERENCE BUILTINS RULE...
  local name=$1 input=$2 reference=$3 builtins=$4; shift 4
  local rules=(); for rule in "$@"; do rules+=(--require "$rule"); done
  measure "$name" "$input" --payload 'model_*' --reference "$data/$reference" --builtin "$builtins" --baseline floor --reps "$reps" --opens \
    --cmd "unshard=$mpirun $unshard merge --local-dir {in} --target-dir {out}/m" \
    --cmd "no-verify=$mpirun $unshard merge --local-dir {in} --target-dir {out}/m --no-verify" \
    --cmd "low-memory=$mpirun $unshard merge --local-dir {in} --target-dir {out}/m --low-cpu-mem-usage" \
    --require 'anon unshard <= 620MB' --require 'anon low-memory <= 180MB' --require 'opens unshard <= 2 * files' "${rules[@]}"
}

small() {
  make_f05
  row "qwen2.5-0.5b, fsdp2 x 8, fp32 -> bf16" f05 r05 "${PEERS:-floor,verl}" 'durable unshard <= 1.5 * floor' 'wall unshard <= 0.125 * verl' \
    'read no-verify <= 1.02 * payload' 'equal unshard' 'equal no-verify' 'equal low-memory'
}
medium() {
  make_f15
  row "qwen2.5-1.5b, fsdp2 x 8, bf16 -> bf16" f15 r15 "${PEERS:-floor,verl}" 'durable unshard <= 1.3 * floor' 'durable no-verify <= 1.2 * floor' \
    'read no-verify <= 1.02 * payload' 'equal unshard' 'equal no-verify' 'equal low-memory'
}
large() {
  make f7 "$python" "$here/make_checkpoint.py" --model qwen2.5-7b --layers 14 --format fsdp2 --dtype bfloat16 --ranks 8 --out "$data/f7" --reference "$data/r7"
  reps=1 row "qwen2.5-7b with 14 layers, fsdp2 x 8, bf16 -> bf16" f7 r7 floor 'equal unshard'
}
many() {
  make_many
  measure "check of 1,024 files with 518,144 chunks" many --payload 'model_*' --builtin torch-load --baseline torch-load --reps 3 --opens \
    --cmd "check=$mpirun $unshard check --local-dir {in}" --require 'wall check <= 0.07 * torch-load'
}
start() {
  make_f05
  measure "start-up" f05 --payload 'model_*' --reps "$reps" --baseline true \
    --cmd "true=mpirun -np 2 true" --cmd "version=$unshard --version" --cmd "check=$unshard check --local-dir {in}" \
    --cmd "check2=mpirun -np 2 $unshard check --local-dir {in}" \
    --require 'wall version <= 0.4 * true' --require 'wall check <= 1 * true' --require 'wall check2 <= 3 * true'
}

run_rows small medium large many start -- "$@"
