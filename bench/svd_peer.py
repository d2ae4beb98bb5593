#!/usr/bin/env python3
"""Peer of `extract-lora --finetuned`: the exact singular value decomposition of each difference, as mergekit's extractor does it.

    svd_peer.py FINETUNED BASE RANK OUT         prints the share of the energy that the rank captures, of all modules together
"""
import os
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file


def main():
    finetuned, base, rank, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    adapter, captured, total = {}, 0.0, 0.0
    with safe_open(os.path.join(finetuned, "model.safetensors"), "pt") as one, safe_open(os.path.join(base, "model.safetensors"), "pt") as other:
        for name in one.keys():
            if not name.endswith("_proj.weight"):
                continue
            u, s, v = torch.linalg.svd(one.get_tensor(name).float() - other.get_tensor(name).float(), full_matrices=False)
            captured, total = captured + float((s[:rank] ** 2).sum()), total + float((s ** 2).sum())
            stem = "base_model.model." + name[:-len(".weight")]
            adapter[stem + ".lora_A.weight"] = (s[:rank].sqrt()[:, None] * v[:rank]).contiguous()
            adapter[stem + ".lora_B.weight"] = (u[:, :rank] * s[:rank].sqrt()).contiguous()
    save_file(adapter, os.path.join(out, "adapter_model.safetensors"), metadata={"format": "pt"})
    print(f"captured {captured / total:.6f} of the energy")


if __name__ == "__main__":
    main()
