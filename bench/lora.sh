#!/usr/bin/env bash
# The rows of bench/README.md about adapters: folding one beside PEFT, folding those inside a checkpoint beside dropping them, and taking one
# out of two models beside a script of torch (svd_peer.py). One table per row; a rule that is not met is said, and the script ends with an error.
#
#   bench/lora.sh [ROW ...]       rows: merge fold svd (default: all); variables: see inputs.sh; PYTHON needs peft
set -euo pipefail
source "$(dirname "$0")/inputs.sh"
mpirun="mpirun --oversubscribe -np 2"

merge() {
  make base "$python" "$here/make_checkpoint.py" --model qwen2.5-1.5b --format hf-sharded --dtype bfloat16 --ranks 2 --lora-rank 16 --out "$data/base" --lora-reference "$data/folded"
  measure "merge-lora: qwen2.5-1.5b bf16, rank 16 on all projections" base --payload '*.safetensors' --adapter "$data/base/adapter" --reference "$data/folded" \
    --builtin "${PEERS:-floor,peft}" --baseline floor --reps "$reps" --cmd "unshard=$mpirun $unshard merge-lora --base-model {in} --lora-adapter {adapter} --target-dir {out}/m" \
    --require 'durable unshard <= 1.7 * floor' --require 'wall unshard <= 0.125 * peft' --require 'anon unshard <= 800MB' --require 'equal unshard'
}
fold() {
  local size command="$mpirun $unshard merge --local-dir {in} --target-dir {out}/m --lora-alpha 32"
  for size in 05:0.5b 15:1.5b; do
    make lora${size%:*} "$python" "$here/make_lora_shards.py" --model "qwen2.5-${size#*:}" --ranks 8 --lora-rank 16 --out "$data/lora${size%:*}"
    measure "adapters inside FSDP2 x 8 of qwen2.5-${size#*:}: fold beside drop" lora${size%:*} --payload 'model_*' --builtin floor --baseline drop --reps "$reps" \
      --cmd "drop=$command --lora drop" --cmd "fold=$command --lora fold" --require 'durable fold <= 1.5 * drop'
  done
}
svd() {
  make_f05
  make tuned05 "$python" "$here/make_changed_copy.py" --base "$data/r05" --rank 16 --out "$data/tuned05"
  measure "extract-lora by SVD, rank 16, qwen2.5-0.5b" tuned05 --payload '*.safetensors' --builtin floor --baseline torch --reps "$((reps > 3 ? 3 : reps))" \
    --cmd "torch={python} $here/svd_peer.py {in} $data/r05 16 {out}" \
    --cmd "unshard=$mpirun $unshard extract-lora --finetuned {in} --base-model $data/r05 --rank 16 --target-dir {out}/m" --require 'wall unshard <= 0.34 * torch'
}

run_rows merge fold svd -- "$@"
