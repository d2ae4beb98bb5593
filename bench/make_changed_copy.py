#!/usr/bin/env python3
"""A copy of a Hugging Face folder (one file) whose projections were trained a little: each differs by a matrix of the given rank and by noise.

    make_changed_copy.py --base DIR --rank 16 --out DIR
"""
import argparse
import os
import shutil

import torch
from safetensors.torch import load_file, save_file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.manual_seed(1)
    tensors = load_file(os.path.join(options.base, "model.safetensors"))
    for name, weight in tensors.items():
        if name.endswith("_proj.weight"):
            rows, columns = weight.shape
            change = torch.randn(rows, options.rank) @ torch.randn(options.rank, columns) * 4e-3 + torch.randn(rows, columns) * 2e-3
            tensors[name] = (weight.float() + change).to(weight.dtype)
    shutil.copytree(options.base, options.out, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(tensors, os.path.join(options.out, "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    main()
