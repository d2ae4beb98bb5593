#!/usr/bin/env python3
"""What --output-format hdf5 writes, read by h5py as docs/hdf5.md says, bfloat16 included, has the tensors of the reference; and an adapter is folded into a model
that h5py has written by the same table.

    read_by_h5py.py --unshard PROGRAM --cases DIR

Exit code 77 (skipped) without h5py, torch or safetensors.
"""
import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import h5py
    import numpy
    import torch
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def recipe():
    """The function `load` of the documentation itself."""
    text = (Path(__file__).parents[2] / "docs" / "hdf5.md").read_text()
    names = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)  # pylint: disable=exec-used
    return names["load"]


def fold_into_model_of_h5py(unshard, case, attribute):
    """`attribute` makes the value of a dataset's attribute `dtype`: texts of fixed or of variable length."""
    with tempfile.TemporaryDirectory() as temporary:
        base, target = Path(temporary) / "base", Path(temporary) / "model"
        shutil.copytree(case / "input" / "base", base, ignore=shutil.ignore_patterns("*.safetensors*"))
        with h5py.File(base / "model.h5", "w") as file:
            for name, tensor in load_file(case / "input" / "base" / "model.safetensors").items():
                dataset = file.create_dataset(name, data=tensor.view(torch.uint16).numpy())
                dataset.attrs["dtype"] = attribute("bfloat16")
        subprocess.run([unshard, "merge-lora", "--base-model", base, "--lora-adapter", case / "input" / "adapter", "--target-dir", target, "--quiet"], check=True)
        tensors, expected = load_file(target / "model.safetensors"), load_file(case / "expected" / "model.safetensors")
        assert tensors.keys() == expected.keys(), set(tensors) ^ set(expected)
        for name, tensor in expected.items():
            assert tensors[name].dtype == tensor.dtype and torch.equal(tensors[name], tensor), name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--unshard", required=True)
    parser.add_argument("--cases", type=Path, required=True)
    options = parser.parse_args()
    load = recipe()
    for case, dtypes in (("two_ranks_bf16", ("keep", "float16", "float32")),):
        folder = options.cases / "fsdp" / case
        for dtype in dtypes:
            with tempfile.TemporaryDirectory() as temporary:
                target = Path(temporary) / "model"
                subprocess.run([options.unshard, "merge", "--local-dir", folder / "input", "--target-dir", target, "--output-format", "hdf5", "--dtype", dtype, "--quiet"],
                               check=True)
                tensors = load(target / "model.h5")
                expected = load_file(folder / "expected" / "model.safetensors")
                assert tensors.keys() == expected.keys(), set(tensors) ^ set(expected)
                for name, tensor in expected.items():
                    wanted = tensor if dtype == "keep" else tensor.to(getattr(torch, dtype))
                    assert tensors[name].dtype == wanted.dtype and torch.equal(tensors[name], wanted), name
                with h5py.File(target / "model.h5") as file:
                    assert json.loads(file.attrs["config"]) == json.loads((target / "config.json").read_text())
                    assert file.attrs["format"] == b"unshard model 1"
    for attribute in (str, numpy.bytes_):
        fold_into_model_of_h5py(options.unshard, options.cases / "lora" / "rslora_bf16", attribute)
    print("equal")


if __name__ == "__main__":
    main()
