#!/usr/bin/env bash
# The rows of bench/README.md about the other inputs and outputs: DCP and Megatron beside the floor (and torch's own consolidation of DCP),
# HDF5 beside safetensors, a second check of many shards from the cache. One table per row; a rule that is not met is said, and the script
# ends with an error.
#
#   bench/formats.sh [ROW ...]       rows: dcp megatron moe hdf5 cache (default: all); variables: see inputs.sh
set -euo pipefail
source "$(dirname "$0")/inputs.sh"
merge="mpirun --oversubscribe -np 2 $unshard merge --local-dir {in} --target-dir {out}/m"

# row TITLE INPUT REFERENCE BUILTINS ARGUMENT...: the merge, verified and not, beside the floor
row() {
  measure "$1" "$2" --reference "$data/$3" --builtin "$4" --baseline floor --reps "$reps" --opens --cmd "unshard=$merge" --cmd "no-verify=$merge --no-verify" \
    --require 'anon unshard <= 620MB' --require 'read no-verify <= 1.02 * payload' --require 'equal unshard' --require 'equal no-verify' "${@:5}"
}

dcp() {
  make_f05
  make d05 "$python" "$here/make_checkpoint.py" --model qwen2.5-0.5b --format dcp --ranks 8 --out "$data/d05"
  row "qwen2.5-0.5b, DCP of 8 ranks, fp32 -> bf16" d05 r05 "${PEERS:-floor,dcp}" --payload '*/*.distcp' --require 'durable unshard <= 1.5 * floor'
}
megatron() {
  make m15 "$python" "$here/make_checkpoint.py" --model qwen2.5-1.5b --format megatron-legacy --dtype bfloat16 --ranks 2 --out "$data/m15" --reference "$data/rm15"
  row "qwen2.5-1.5b, Megatron mp_rank files, TP 2, bf16" m15 rm15 floor --payload '*/*/*.pt' --require 'durable unshard <= 1.3 * floor'
}
moe() {
  make moe "$python" "$here/make_checkpoint.py" --model qwen3-30b-a3b --layers 2 --format megatron-torch_dist --dtype bfloat16 --ranks 8 --out "$data/moe" --reference "$data/rmoe"
  row "qwen3-30b-a3b with 2 layers, torch_dist of 8 ranks, 128 experts, bf16" moe rmoe floor --payload '*/*.distcp' --require 'durable unshard <= 1.3 * floor'
}
hdf5() {
  make_f15
  measure "qwen2.5-1.5b to HDF5" f15 --payload 'model_*' --builtin floor --baseline safetensors --reps "$reps" --cmd "safetensors=$merge" --cmd "hdf5=$merge --output-format hdf5" \
    --require 'durable hdf5 <= 1.1 * safetensors'
}
cache() {
  make_many
  rm -rf "$data/cache"
  local check="mpirun -np 2 $unshard check --local-dir {in}"
  ${check//\{in\}/$data/many} --quiet --cache-dir "$data/cache"
  measure "second check of 1,024 files with 518,144 chunks" many --payload 'model_*' --builtin torch-load --baseline torch-load --reps 3 --opens --cmd "check=$check" \
    --cmd "cached=$check --cache-dir $data/cache" --require 'wall check <= 0.04 * torch-load' --require 'wall cached <= 0.015 * torch-load'
}

run_rows dcp megatron moe hdf5 cache -- "$@"
