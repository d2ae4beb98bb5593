#!/usr/bin/env bash
# The rows of bench/README.md about Hugging Face folders: makes the inputs once under DATA, then measures this build beside the named peers, in one run per row.
#
#   bench/hf.sh [ROW ...]        rows: equal shards headers deep reshard (default: all); variables: see inputs.sh;
#   PEERS=0: without the slow peers
set -euo pipefail
source "$(dirname "$0")/inputs.sh"
mpirun="mpirun --oversubscribe -np 2"

make_pair() {  # two folders with files of their own
  make_f15
  [ -e "$data/pair" ] || { mkdir "$data/pair.new" && cp -r "$data/r15" "$data/pair.new/a" && cp -r "$data/r15" "$data/pair.new/b" && mv "$data/pair.new" "$data/pair"; }
}

equal() {
  make_pair
  local peer=(); [ "${PEERS:-1}" = 0 ] || peer=(--cmd "allclose={python} $here/allclose.py {in}/a {in}/b" --require 'wall unshard <= 0.2 * allclose')
  measure "test of two equal folders of 3.1 GB" pair --reps "$reps" --payload '*/*.safetensors' --builtin floor --baseline floor --out-bytes 0 \
    --cmd "unshard=$mpirun $unshard test --merged-dir {in}/a --test-hf-dir {in}/b" \
    --require 'wall unshard <= 1.5 * floor' --require 'anon unshard <= 1258MB' "${peer[@]}"
}
shards() {
  make_f15
  # The floor reads the shards and the reference; both lie in one folder of links for that.
  [ -e "$data/both" ] || { mkdir "$data/both" && ln -s ../f15 "$data/both/f15" && ln -s ../r15 "$data/both/r15"; }
  measure "test of fsdp2 shards of qwen2.5-1.5b against the folder of 3.1 GB" both --reps "$reps" --payload 'f15/model_world_size_*' --payload 'r15/*.safetensors' --builtin floor --baseline floor --out-bytes 0 \
    --cmd "unshard=$mpirun $unshard test --local-dir {in}/f15 --test-hf-dir {in}/r15" --require 'wall unshard <= 1.6 * floor'
}
headers() {
  make tensors "$python" "$here/make_many_tensors.py" --out "$data/tensors"
  measure "check of 163 files with 46,000 tensors: at most 1 s" tensors --reps "$reps" --payload '*.safetensors' --baseline true --cmd "true=mpirun -np 2 true" --cmd "plain=$unshard check --local-dir {in}" \
    --cmd "unshard=$mpirun $unshard check --local-dir {in}"
}
deep() {
  make_f15
  measure "check --deep of a folder of 3.1 GB" r15 --reps "$reps" --payload '*.safetensors' --builtin floor --baseline floor --out-bytes 0 --cmd "unshard=$unshard check --deep --local-dir {in}" \
    --cmd "two=$mpirun $unshard check --deep --local-dir {in}" --require 'wall unshard <= 1.3 * floor' --require 'read unshard <= 1.02 * payload' --require 'read two <= 1.02 * payload'
}
reshard() {
  make_f15
  local peer=floor; [ "${PEERS:-1}" = 0 ] || peer=floor,hf-resave
  measure "re-shard of 3.1 GB into files of 1 GB" r15 --reps "$reps" --payload '*.safetensors' --builtin "$peer" --baseline floor --reference "$data/r15" \
    --cmd "unshard=$mpirun $unshard merge --backend hf --local-dir {in} --target-dir {out}/m --max-shard-size 1GB" \
    --require 'durable unshard <= 1.2 * floor' --require 'equal unshard'
}

run_rows equal shards headers deep reshard -- "$@"
