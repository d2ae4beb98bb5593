#!/usr/bin/env python3
"""Files of torch.save and pickle.dump with every kind of tensor that needs attention; small, with values known by heart. Made with torch 2.13.0.

    generate.py            writes kinds.pt, kinds_legacy.pt, plain_protocol2.pkl, plain_protocol5.pkl beside itself
"""
import collections
import pickle
from pathlib import Path

import torch

here = Path(__file__).parent


class Tagged(torch.Tensor):
    """A subclass whose data is that of a plain tensor."""


def kinds():
    count = torch.arange(6, dtype=torch.float32)
    parameter = torch.nn.Parameter(count.clone())
    attributed = torch.nn.Parameter(count.clone())
    attributed.partition_dim = 1
    with_attribute = count.clone()
    with_attribute.note = "x"
    return collections.OrderedDict(
        plain=count.clone(),
        parameter=parameter,
        attributed=attributed,
        with_attribute=with_attribute,
        tagged=count.clone().as_subclass(Tagged),
        transposed=count.clone().view(2, 3).T,
        zero_dim=torch.tensor(2.5),
        empty=torch.empty(0, 3),
        numbers=[torch.tensor([1, 2], dtype=t) for t in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)],
        floats=[torch.tensor([1.0, 2.0]).to(t) for t in (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)],
        booleans=torch.tensor([True, False]),
        complexes=(torch.tensor([1 + 2j], dtype=torch.complex64), torch.tensor([1 + 2j], dtype=torch.complex128)),
        nested={"inner": {3: count[2:4].clone()}},
        unreadable={
            "meta": torch.empty(2, 3, device="meta"),
            "conj": torch.tensor([1 + 2j]).conj(),
            "sparse": torch.eye(2).to_sparse(),
            "csr": torch.eye(2).to_sparse_csr(),
            "quantised": torch.quantize_per_tensor(count, 0.5, 0, torch.qint8),
            "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        })


def legacy():
    whole = torch.arange(10, dtype=torch.int64)
    return {"whole": whole, "part": whole[3:5], "other": torch.tensor([1.5, -2.5]), "empty": torch.empty(0)}


torch.save(kinds(), here / "kinds.pt")
torch.save(legacy(), here / "kinds_legacy.pt", _use_new_zipfile_serialization=False)
for protocol in (2, 5):
    with open(here / f"plain_protocol{protocol}.pkl", "wb") as f:
        pickle.dump({"a": torch.arange(3), "b": torch.nn.Parameter(torch.tensor([0.5]))}, f, protocol)
