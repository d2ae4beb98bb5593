#!/usr/bin/env python3
"""What --output-format hdf5 writes, read by h5py as docs/hdf5.md says, bfloat16 included, has the tensors of the reference.

    read_by_h5py.py --unshard PROGRAM --cases DIR

Exit code 77 (skipped) without h5py, torch or safetensors.
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import h5py
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
    print("equal")


if __name__ == "__main__":
    main()
