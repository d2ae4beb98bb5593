#!/usr/bin/env python3
"""What save_pretrained of the installed transformers writes goes through `merge` unchanged: the same files, the same bytes, and the result loads and generates.

    round_trip.py --unshard build/unshard [--only llama,qwen2] [--ranks 2]

For each architecture a tiny random model is saved in one file and in many, merged, and compared: names of all files, weights, indexes and configuration byte for byte. Where the
modules hold the experts of a layer in one tensor, a folder of that layout is made one by one, and back with --like. Exit status 0,
1 when a model differs, 77 (skipped) where torch or transformers are not installed.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import safetensors.torch
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}; ./bootstrap deps installs it")
    sys.exit(77)

SMALL = dict(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             pad_token_id=0, bos_token_id=1, eos_token_id=2)
MOE = dict(moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)

# kind: the class of its config, that of the model, and what differs from SMALL
KINDS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", dict(tie_word_embeddings=True)),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", dict(head_dim=8)),
    "mistral": ("MistralConfig", "MistralForCausalLM", {}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", dict(head_dim=8)),
    "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM", dict(head_dim=8)),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", {}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", dict(n_embd=16, n_layer=2, n_head=4, n_positions=64, n_inner=24)),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {}),
    "opt": ("OPTConfig", "OPTForCausalLM", dict(ffn_dim=24, word_embed_proj_dim=16)),
    "bloom": ("BloomConfig", "BloomForCausalLM", dict(n_layer=2, n_head=4)),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM", {}),
    "qwen2_moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", dict(MOE, shared_expert_intermediate_size=20)),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", dict(MOE, head_dim=8)),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", dict(num_local_experts=4)),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM",
                    dict(moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, n_shared_experts=1, first_k_dense_replace=1,
                         q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8, num_key_value_heads=4)),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM", dict(num_local_experts=4, num_experts_per_tok=2, head_dim=8)),
}
SHARDS = ["50GB", "8KB", "3KB"]
FUSED = {"qwen2_moe", "qwen3_moe", "mixtral", "deepseek_v3"}
KNOWN = set(KINDS) - {"olmo2", "opt", "bloom", "starcoder2"}  # families with a table of tensors


def build(kind):
    config_name, model_name, changes = KINDS[kind]
    config = getattr(transformers, config_name)(**{**SMALL, **changes})
    torch.manual_seed(1)
    return getattr(transformers, model_name)(config).to(torch.bfloat16)


def generated(model):
    torch.manual_seed(2)
    with torch.no_grad():
        return model.eval().generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False, pad_token_id=0)


def load(kind, folder):
    loaded, info = kind.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True, local_files_only=True)
    wrong = {key: sorted(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info.get(key)}
    if wrong:
        raise ValueError(f"{folder.name}: {wrong}")
    return loaded


def differences(saved, merged):
    names = lambda folder: {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    found = [f"only one of the folders has {name}" for name in sorted(names(saved) ^ names(merged))]
    for name in sorted(names(saved) & names(merged)):
        one, other = (saved / name).read_bytes(), (merged / name).read_bytes()
        if one == other:
            continue
        if name.endswith("config.json") and json.loads(one) == json.loads(other):
            continue
        found.append(f"{name} differs")
    return found


def merge(options, source, target, *more):
    command = [options.unshard, "merge", "--backend", "hf", "--local-dir", str(source), "--target-dir", str(target), *more]
    subprocess.run([*options.launcher, *command], check=True, timeout=120, capture_output=True)


def expect_tensors(folder, expected):
    found = safetensors.torch.load_file(folder / "model.safetensors")
    if found.keys() != expected.keys():
        raise ValueError(f"{folder.name}: other names: {sorted(found.keys() ^ expected.keys())[:6]}")
    wrong = [name for name, tensor in found.items() if tensor.dtype != expected[name].dtype or not torch.equal(tensor, expected[name])]
    if wrong:
        raise ValueError(f"{folder.name}: other values: {wrong[:6]}")


def try_fused_experts(model, options, out):
    """`saved-50GB` has the experts one by one, the modules have them in one tensor."""
    modules, saved = model.state_dict(), out / f"saved-{SHARDS[0]}"
    (out / "fused").mkdir()
    safetensors.torch.save_file(modules, out / "fused" / "model.safetensors", {"format": "pt"})
    model.config.save_pretrained(out / "fused")
    merge(options, out / "fused", out / "one-by-one")
    expect_tensors(out / "one-by-one", safetensors.torch.load_file(saved / "model.safetensors"))
    merge(options, saved, out / "fused-again", "--like", str(out / "fused"))
    expect_tensors(out / "fused-again", modules)


def try_kind(kind, options, out):
    model = build(kind)
    for size in SHARDS:
        model.save_pretrained(out / f"saved-{size}", max_shard_size=size)
    for size in SHARDS:
        for source in SHARDS if kind in KNOWN else [size]:  # from files split otherwise, the order of the model must be known
            merged = out / f"merged-{size}-{source}"
            merge(options, out / f"saved-{source}", merged, "--max-shard-size", size)
            found = differences(out / f"saved-{size}", merged)
            if found:
                raise ValueError(f"{source} to {size}: " + "; ".join(found[:6]))
    if not torch.equal(generated(load(type(model), merged)), generated(load(type(model), out / f"saved-{SHARDS[0]}"))):
        raise ValueError("generates something else")
    if kind in FUSED:
        try_fused_experts(model, options, out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--unshard", required=True)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    options.launcher = ["mpirun", "--oversubscribe", "-np", str(options.ranks)] if options.ranks > 1 else []
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = 0
    for kind in options.only.split(","):
        with tempfile.TemporaryDirectory(prefix="unshard-round-trip-") as folder:
            try:
                try_kind(kind, options, Path(folder))
                print(f"{kind}: same files, same bytes, loads, generates", flush=True)
            except subprocess.CalledProcessError as error:
                failed += 1
                print(f"FAILED {kind}: {error.stderr.decode(errors='replace').strip()}", flush=True)
            except Exception as error:
                failed += 1
                print(f"FAILED {kind}: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
