#!/usr/bin/env bash
# The rows of bench/README.md about Hugging Face folders: makes the inputs once under DATA, then measures this build beside the named peers, in one run per row.
#
#   bench/hf.sh [ROW ...]        rows: equal shards headers deep reshard (default: all)
#
# DATA    folder on the file system to measure (default: /tmp/unshard-bench); needs 15 GB
# PYTHON  a Python with torch, transformers and safetensors (default: .venv/bin/python)
# REPS    repetitions (default: 7)
# PEERS   0: without the slow peers
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
data=${DATA:-/tmp/unshard-bench}
python=${PYTHON:-$here/../.venv/bin/python}
reps=${REPS:-7}
unshard=${UNSHARD:-$here/../build/unshard}
mpirun="mpirun --oversubscribe -np 2"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p "$data/out"

make_model() {
  [ -e "$data/f15" ] && [ -e "$data/r15" ] ||
    "$python" "$here/make_checkpoint.py" --model qwen2.5-1.5b --format fsdp2 --dtype bfloat16 --ranks 8 --out "$data/f15" --reference "$data/r15" >&2
}
make_pair() {  # two folders with files of their own
  make_model
  [ -e "$data/pair" ] || { mkdir "$data/pair.new" && cp -r "$data/r15" "$data/pair.new/a" && cp -r "$data/r15" "$data/pair.new/b" && mv "$data/pair.new" "$data/pair"; }
}

compare() {  # INPUT PAYLOAD ARGUMENT...
  "$here/compare.py" --input "$data/$1" --payload "$2" --out-root "$data/out" --python "$python" --reps "$reps" "${@:3}"
}

equal() {
  make_pair
  echo "== test of two equal folders of 3.1 GB"
  local peer=(); [ "${PEERS:-1}" = 0 ] || peer=(--cmd "allclose={python} $here/allclose.py {in}/a {in}/b" --require 'wall unshard <= 0.2 * allclose')
  compare pair '*/*.safetensors' --builtin floor --baseline floor --out-bytes 0 \
    --cmd "unshard=$mpirun $unshard test --merged-dir {in}/a --test-hf-dir {in}/b" \
    --require 'wall unshard <= 1.5 * floor' --require 'anon unshard <= 1258MB' "${peer[@]}"
}
shards() {
  make_model
  # The floor reads the shards and the reference; both lie in one folder of links for that.
  [ -e "$data/both" ] || { mkdir "$data/both" && ln -s ../f15 "$data/both/f15" && ln -s ../r15 "$data/both/r15"; }
  echo "== test of fsdp2 shards of qwen2.5-1.5b against the folder of 3.1 GB"
  compare both 'f15/model_world_size_*' --payload 'r15/*.safetensors' --builtin floor --baseline floor --out-bytes 0 \
    --cmd "unshard=$mpirun $unshard test --local-dir {in}/f15 --test-hf-dir {in}/r15" --require 'wall unshard <= 1.6 * floor'
}
headers() {
  [ -e "$data/tensors" ] || "$python" "$here/make_many_tensors.py" --out "$data/tensors"
  echo "== check of 163 files with 46,000 tensors: at most 1 s"
  compare tensors '*.safetensors' --baseline true --cmd "true=mpirun -np 2 true" --cmd "plain=$unshard check --local-dir {in}" \
    --cmd "unshard=$mpirun $unshard check --local-dir {in}"
}
deep() {
  make_model
  echo "== check --deep of a folder of 3.1 GB"
  compare r15 '*.safetensors' --builtin floor --baseline floor --out-bytes 0 --cmd "unshard=$mpirun $unshard check --deep --local-dir {in}" \
    --require 'wall unshard <= 1.3 * floor' --require 'read unshard <= 1.02 * payload'
}
reshard() {
  make_model
  echo "== re-shard of 3.1 GB into files of 1 GB"
  local peer=floor; [ "${PEERS:-1}" = 0 ] || peer=floor,hf-resave
  compare r15 '*.safetensors' --builtin "$peer" --baseline floor --reference "$data/r15" \
    --cmd "unshard=$mpirun $unshard merge --backend hf --local-dir {in} --target-dir {out}/m --max-shard-size 1GB" \
    --require 'durable unshard <= 1.2 * floor' --require 'equal unshard'
}

rows=("$@"); [ ${#rows[@]} -gt 0 ] || rows=(equal shards headers deep reshard)
for each in "${rows[@]}"; do "$each"; done
