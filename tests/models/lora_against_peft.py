#!/usr/bin/env python3
"""LoRA with the installed PEFT as judge, on random weights.

    lora_against_peft.py --unshard build/unshard

merge-lora must give what merge_and_unload gives in fp64, but for the roundings of fp32 sums and one into the base's dtype; adapters that --output adapter,
extract-lora and --lora extract write must load in PEFT and give the same logits. Exit status 0, 1 when something differs, 77 (skipped) where torch,
transformers or peft are not installed.
"""
import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

try:
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}; ./bootstrap deps installs it")
    sys.exit(77)

warnings.filterwarnings("ignore")
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
INTERMEDIATE = 88

# name: dtype of the base, changes of the model, arguments of LoraConfig
VARIANTS = {
    "plain": (torch.float32, {}, dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "all_linear_bf16": (torch.bfloat16, {}, dict(r=16, lora_alpha=8, target_modules=LINEAR)),
    "rank_stabilised": (torch.bfloat16, {}, dict(r=6, lora_alpha=5, use_rslora=True, target_modules=LINEAR)),
    "patterns": (torch.float32, {}, dict(r=4, lora_alpha=8, target_modules=LINEAR, rank_pattern={"q_proj": 7, "layers.1.mlp.up_proj": 2},
                                         alpha_pattern={"v_proj": 3, r".*\.0\.mlp\..*": 11})),
    "dora": (torch.float32, {}, dict(r=4, lora_alpha=8, use_dora=True, target_modules=LINEAR)),
    "bias": (torch.float32, {"attention_bias": True}, dict(r=4, lora_alpha=8, lora_bias=True, target_modules=["q_proj", "o_proj"])),
    "embedding": (torch.float32, {}, dict(r=4, lora_alpha=8, target_modules=["embed_tokens", "q_proj"])),
    "head": (torch.float32, {}, dict(r=4, lora_alpha=8, target_modules=["lm_head", "q_proj"])),
    "saved_modules": (torch.float32, {}, dict(r=4, lora_alpha=8, target_modules=["q_proj"], modules_to_save=["lm_head", "model.norm"])),
    "trained_tokens": (torch.float32, {}, dict(r=4, lora_alpha=8, target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [3, 4, 9, 0]})),
}


def base_model(folder, dtype, **changes):
    config = transformers.LlamaConfig(vocab_size=61, hidden_size=48, intermediate_size=INTERMEDIATE, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, **changes)
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).to(dtype)
    model.save_pretrained(folder)
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=dtype)


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in sorted(model.named_parameters()):
            if "lora_magnitude_vector" in name:
                tensor.mul_(1 + 0.3 * torch.rand(tensor.shape, generator=generator))
            elif "lora_" in name or "modules_to_save." in name or "trainable_tokens_delta" in name:
                tensor.copy_(0.2 * torch.randn(tensor.shape, generator=generator))


def run(unshard, *arguments):
    subprocess.run([unshard, *map(str, arguments)], check=True, timeout=120, capture_output=True)


def state(folder):
    return {k: v for file in Path(folder).glob("*.safetensors") for k, v in load_file(file).items()}


def check_close(got, exact, sizes, terms, what):
    """Every value within the error that fp32 may make in any order of adding up: a rounding per term of `sizes`, what the absolute values of all that is added up
    come to (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), and one rounding into the tensor's own dtype."""
    assert got.keys() == exact.keys(), f"{what}: names {sorted(got.keys() ^ exact.keys())[:4]}"
    for name, reference in exact.items():
        last = torch.finfo(got[name].dtype).eps / 2 * reference.abs()
        added_up = terms * torch.finfo(torch.float32).eps / 2 * sizes[name]
        apart = (got[name].double() - reference).abs()
        assert (apart <= last + added_up).all(), f"{what}: {name} is up to {apart.max().item()} apart"


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(20).reshape(2, 10)).logits.float()


def merged_by_peft(folder, change=lambda tensor: tensor):
    """What merge_and_unload gives in fp64, of every number after `change`."""
    wide = transformers.LlamaForCausalLM.from_pretrained(folder / "base", dtype=torch.float64)
    adapted = peft.PeftModel.from_pretrained(wide, folder / "adapter")
    with torch.no_grad():
        for tensor in adapted.parameters():
            tensor.copy_(change(tensor))
    return adapted.merge_and_unload().state_dict()


def try_variant(unshard, folder, dtype, changes, arguments):
    model = base_model(folder / "base", dtype, **changes)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **arguments))
    randomise(adapted, 2)
    adapted.save_pretrained(folder / "adapter")
    run(unshard, "merge-lora", "--base-model", folder / "base", "--lora-adapter", folder / "adapter", "--target-dir", folder / "folded")
    folded = state(folder / "folded")
    assert all(tensor.dtype == dtype for tensor in folded.values()), "folded: a dtype is not the base's"
    rank = max([arguments["r"], *arguments.get("rank_pattern", {}).values()])
    terms = rank + 3  # and the base, the scale, and its own rounding
    if arguments.get("use_dora"):
        terms += INTERMEDIATE  # the norm of a row; it is smaller than that of absolute values, by less than this
    check_close(folded, merged_by_peft(folder), merged_by_peft(folder, torch.abs), terms, "folded")
    transformers.LlamaForCausalLM.from_pretrained(folder / "folded", dtype=dtype)


def try_combined(unshard, folder):
    base_model(folder / "base", torch.float32)
    models = {}
    for number, (name, config) in enumerate({"one": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
                                             "two": dict(r=6, lora_alpha=3, target_modules=["q_proj", "up_proj"])}.items()):
        model = transformers.LlamaForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
        models[name] = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **config))
        randomise(models[name], number)
        models[name].save_pretrained(folder / name)
    adapters = f"{folder / 'one'},{folder / 'two'}"
    method = ("--merge-method", "weighted", "--adapter-weights", "0.7,-0.3")
    run(unshard, "merge-lora", "--base-model", folder / "base", "--lora-adapter", adapters, "--target-dir", folder / "folded", *method)
    run(unshard, "merge-lora", "--base-model", folder / "base", "--lora-adapter", adapters, "--target-dir", folder / "both", "--output", "adapter", *method)
    folded = logits(transformers.LlamaForCausalLM.from_pretrained(folder / "folded", dtype=torch.float32))
    model = transformers.LlamaForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    both = logits(peft.PeftModel.from_pretrained(model, folder / "both"))
    assert torch.allclose(folded, both, atol=2e-5), f"combined: {(folded - both).abs().max().item()}"


def try_svd(unshard, folder):
    model = base_model(folder / "base", torch.float32)
    with torch.no_grad():
        for name, tensor in sorted(model.named_parameters()):
            if name.endswith(("q_proj.weight", "down_proj.weight")):
                tensor.add_(0.1 * torch.randn(tensor.shape[0], 3) @ torch.randn(3, tensor.shape[1]))
        model.model.norm.weight.mul_(1.5)
    model.save_pretrained(folder / "tuned")
    run(unshard, "extract-lora", "--finetuned", folder / "tuned", "--base-model", folder / "base", "--target-dir", folder / "adapter", "--rank", "4")
    plain = transformers.LlamaForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    got = logits(peft.PeftModel.from_pretrained(plain, folder / "adapter"))
    want = logits(model)
    assert torch.allclose(got, want, atol=1e-4), f"svd: {(got - want).abs().max().item()}"
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == 4 and config["target_modules"] == ["down_proj", "q_proj"], config


def try_checkpoint(unshard, folder):
    """Adapters as a training job stores them, in one rank file."""
    model = base_model(folder / "base", torch.float32)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=["q_proj", "up_proj"]))
    randomise(adapted, 5)
    want = logits(adapted)
    shards = folder / "shards"
    (shards / "huggingface").mkdir(parents=True)
    torch.save(adapted.state_dict(), shards / "model_world_size_1_rank_0.pt")
    (shards / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    (shards / "lora_train_meta.json").write_text('{"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}')
    (shards / "huggingface" / "config.json").write_text((folder / "base" / "config.json").read_text())
    run(unshard, "merge", "--local-dir", shards, "--target-dir", folder / "apart")
    run(unshard, "merge", "--local-dir", shards, "--target-dir", folder / "folded", "--lora", "fold")
    plain = transformers.LlamaForCausalLM.from_pretrained(folder / "apart", dtype=torch.float32)
    got = logits(peft.PeftModel.from_pretrained(plain, folder / "apart" / "lora_adapter"))
    assert torch.equal(got, want), f"extracted: {(got - want).abs().max().item()}"
    folded = logits(transformers.LlamaForCausalLM.from_pretrained(folder / "folded", dtype=torch.float32))
    assert torch.allclose(folded, want, atol=2e-5), f"folded: {(folded - want).abs().max().item()}"


def try_megatron(unshard, folder, case):
    """Adapters beside Megatron's fused layers: what is extracted does in PEFT what is folded."""
    inputs = Path(__file__).parent.parent / "cases" / "lora" / case / "input"
    common = ["--local-dir", inputs / "run", "--hf-config", inputs / "hf", "--lora-alpha", "8"]
    run(unshard, "merge", *common, "--target-dir", folder / "apart")
    run(unshard, "merge", *common, "--target-dir", folder / "folded", "--lora", "fold")
    load = transformers.AutoModelForCausalLM.from_pretrained
    plain = load(folder / "apart", dtype=torch.float32)
    want = logits(plain)
    got = logits(peft.PeftModel.from_pretrained(plain, folder / "apart" / "lora_adapter"))
    folded = logits(load(folder / "folded", dtype=torch.float32))
    assert torch.allclose(got, folded, atol=2e-4, rtol=1e-4), f"extracted and folded: {(got - folded).abs().max().item()}"
    assert not torch.allclose(want, folded, atol=1e-2), "the adapter changes nothing"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--unshard", required=True)
    unshard = parser.parse_args().unshard
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    trials = {name: (lambda folder, of=of: try_variant(unshard, folder, *of)) for name, of in VARIANTS.items()}
    trials |= {"combined": lambda folder: try_combined(unshard, folder), "svd": lambda folder: try_svd(unshard, folder),
               "checkpoint": lambda folder: try_checkpoint(unshard, folder)}
    for case in ("megatron_torch_dist_stacked", "megatron_torch_dist_fused_published", "megatron_ranks_tp2_pp2"):
        trials[case] = lambda folder, case=case: try_megatron(unshard, folder, case)
    failed = 0
    for name, trial in trials.items():
        with tempfile.TemporaryDirectory(prefix="unshard-lora-") as folder:
            try:
                trial(Path(folder))
                print(f"{name}: as PEFT")
            except subprocess.CalledProcessError as error:
                failed += 1
                print(f"FAILED {name}: {error.stderr.decode(errors='replace').strip()}")
            except Exception as error:  # whatever PEFT or transformers throws is a failure of this trial
                failed += 1
                print(f"FAILED {name}: {type(error).__name__}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
