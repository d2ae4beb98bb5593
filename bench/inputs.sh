# Sourced by the scripts beside it: what they measure with, and inputs that are made once.
#
# DATA    folder on the file system to measure (default: /tmp/unshard-bench); needs 30 GB
# PYTHON  a Python with torch, transformers and, for the peer, verl (default: .venv/bin/python)
# REPS    repetitions (default: 7)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
data=${DATA:-/tmp/unshard-bench}
python=${PYTHON:-$here/../.venv/bin/python}
reps=${REPS:-7}
unshard=${UNSHARD:-$here/../build/unshard}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p "$data/out"

make() {  # NAME COMMAND...: runs the command once
  [ -e "$data/$1" ] || { echo "making $data/$1" >&2; "${@:2}" >&2; }
}
make_f05() {  # qwen2.5-0.5b, fp32, and in r05 what must come out in bf16
  make f05 "$python" "$here/make_checkpoint.py" --model qwen2.5-0.5b --format fsdp2 --ranks 8 --out "$data/f05" --reference "$data/r05"
}
make_f15() {  # qwen2.5-1.5b, bf16, and r15
  make f15 "$python" "$here/make_checkpoint.py" --model qwen2.5-1.5b --format fsdp2 --dtype bfloat16 --ranks 8 --out "$data/f15" --reference "$data/r15"
}
make_many() {
  make many "$python" "$here/make_many_shards.py" --out "$data/many"
}

failed=()
# measure TITLE INPUT ARGUMENT...: one run of compare.py, one table
measure() {
  echo "== $1"
  "$here/compare.py" --input "$data/$2" --out-root "$data/out" --python "$python" "${@:3}" || failed+=("$1")
}
# run_rows ROW ... -- WANTED ...: the functions of these names, all when none is wanted; ends with an error when a rule was not met
run_rows() {
  local known=() each
  while [ "$1" != -- ]; do known+=("$1"); shift; done
  shift
  local rows=("$@"); [ ${#rows[@]} -gt 0 ] || rows=("${known[@]}")
  for each in "${rows[@]}"; do "$each"; done
  [ ${#failed[@]} -eq 0 ] || { printf 'not met: %s\n' "${failed[@]}"; exit 1; }
}
