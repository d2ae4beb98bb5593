#!/usr/bin/env python3
"""Merged folders load in transformers, with nothing missing or left over, and give the logits of the reference.

    load_in_transformers.py --unshard build/unshard --cases tests/cases

For the cases of the group fsdp that are named here, and for every case of the groups dcp, accelerate and megatron that ends with a model: its first `merge` is run, the folder is loaded with from_pretrained,
and its logits are compared with those of the case's expected tensors under the config.json of the training run. Exit status 0, 1 when a model differs, 77 (skipped) where torch or transformers are not installed.
"""
import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}; ./bootstrap deps installs it")
    sys.exit(77)

FSDP_CASES = ["two_ranks_bf16", "hybrid_2x2", "uneven_5_over_2", "fsdp1_two_ranks", "fsdp1_four_ranks_uneven", "gpt2", "gemma_tied", "tied_two_copies",
              "tied_but_different", "qwen3_moe_fused", "qwen3_moe_by_expert", "mixtral_fused", "qwen3_vl", "several_files", "wrapper_prefixes", "verl_command_line"]
WHOLE_GROUPS = ["dcp", "accelerate", "megatron"]


def first_merge(case):
    """-> the first step that merges a model, and what is expected of its target folder; None where the case has no such thing."""
    told = json.loads((case / "case.json").read_text())
    merges = [s for s in told["steps"] if s["args"][0] == "merge" and s.get("exit", 0) == 0]
    if not merges:
        return None
    target = next(value for option, value in zip(merges[0]["args"], merges[0]["args"][1:]) if option.replace("_", "-") == "--target-dir")
    expected = [e for e in told["expect"] if e.get("dir") == target and "tensors" in e]
    return (merges[0], expected[0]) if expected else None


def cases_of(folder):
    whole = [p.parent for group in WHOLE_GROUPS for p in sorted((folder / group).glob("*/case.json"))]
    return [folder / "fsdp" / name for name in FSDP_CASES] + [case for case in whole if first_merge(case)]


def load(folder):
    """-> the model of a folder, in fp32 so that both sides compute alike; complains of keys that do not fit."""
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    model, found = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, local_files_only=True)
    wrong = {key: sorted(found[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if found.get(key)}
    if wrong:
        raise ValueError(f"{folder.name}: {wrong}")
    return model.eval()


def logits(model):
    """-> what the model computes of random tokens, or of random images."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        if model.main_input_name == "pixel_values":
            return model(pixel_values=torch.randn(2, model.config.num_channels, 32, 32, generator=generator)).logits
        vocabulary = model.get_input_embeddings().weight.shape[0]
        return model(input_ids=torch.randint(0, vocabulary, (2, 7), generator=generator)).logits


def try_case(case, unshard, out):
    """Raises for anything that is not right."""
    step, expected = first_merge(case)
    arguments = [a.replace("{case}", str(case)).replace("{out}", str(out)) for a in step["args"]]
    subprocess.run([unshard, *arguments], check=True, cwd=out, timeout=120, capture_output=True)
    merged = Path(expected["dir"].replace("{out}", str(out)))
    reference = out / "reference"
    reference.mkdir()
    tensors = case / expected["tensors"]
    for file in tensors.glob("*.safetensors*") if tensors.is_dir() else [tensors]:
        shutil.copy(file, reference / (file.name if tensors.is_dir() else "model.safetensors"))
    given = [Path(value) / "config.json" for option, value in zip(arguments, arguments[1:]) if option == "--hf-config"]
    shutil.copy([*given, *case.rglob("huggingface/config.json"), *case.rglob("hf/config.json")][0], reference)
    if json.loads((merged / "config.json").read_text()).get("tie_word_embeddings") is False:  # tied by config, different in the checkpoint
        config = json.loads((reference / "config.json").read_text())
        (reference / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    got, want = logits(load(merged)), logits(load(reference))
    if not torch.equal(got, want) or not torch.isfinite(want).all():
        raise ValueError(f"logits differ by up to {(got - want).abs().max().item()}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--unshard", required=True, type=Path)
    parser.add_argument("--cases", required=True, type=Path)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = 0
    cases = cases_of(options.cases.resolve())
    for case in cases:
        name = f"{case.parent.name}/{case.name}"
        with tempfile.TemporaryDirectory(prefix="unshard-models-") as folder:
            try:
                try_case(case, options.unshard.resolve(), Path(folder))
                print(f"{name}: loads, same logits")
            except subprocess.CalledProcessError as error:
                failed += 1
                print(f"FAILED {name}: {error.stderr.decode(errors='replace').strip()}")
            except (ValueError, OSError, RuntimeError, KeyError, AttributeError) as error:
                failed += 1
                print(f"FAILED {name}: {error}")
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
