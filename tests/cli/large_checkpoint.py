"""Writes a checkpoint of 9 MB without PyTorch: large enough that each of four ranks has a part of the one output file to write. As one file of torch.save,
or as a Hugging Face folder of several files.

A file of torch.save is a zip of stored records: data.pkl, and data/<key> with the bytes of each storage, which the pickle names by a persistent id
(torch/serialization.py, _save). The pickle refers to torch's functions by name only, so stand-ins with these names are enough to write it.
"""
import io
import json
import math
import pickle
import random
import sys
import types
import zipfile
from collections import OrderedDict

HIDDEN, HEADS, VOCABULARY, INTERMEDIATE = 128, 4, 32768, 256
CONFIG = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
          "num_hidden_layers": 1, "intermediate_size": INTERMEDIATE, "vocab_size": VOCABULARY, "tie_word_embeddings": True, "dtype": "bfloat16",
          "hidden_act": "silu", "max_position_embeddings": 128, "rms_norm_eps": 1e-6}


class Storage:
    def __init__(self, key, size):
        self.key, self.size = key, size


class Tensor:
    def __init__(self, key, shape):
        self.key, self.shape = key, shape

    def __reduce__(self):
        strides, size = [], 1
        for extent in reversed(self.shape):
            strides.insert(0, size)
            size *= extent
        return sys.modules["torch._utils"]._rebuild_tensor_v2, (Storage(self.key, size), 0, tuple(self.shape), tuple(strides), False, OrderedDict())


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        return ("storage", sys.modules["torch"].BFloat16Storage, obj.key, "cpu", obj.size) if isinstance(obj, Storage) else None


def with_stand_ins():
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch.BFloat16Storage = type("BFloat16Storage", (), {"__module__": "torch"})
    utils._rebuild_tensor_v2 = types.FunctionType((lambda *_: None).__code__, {}, "_rebuild_tensor_v2")
    utils._rebuild_tensor_v2.__module__, utils._rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    torch._utils = utils
    return {"torch": torch, "torch._utils": utils}


def shapes():
    layer = "model.layers.0."
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for name in "qkv":
        yield f"{layer}self_attn.{name}_proj.weight", (HIDDEN, HIDDEN)
        yield f"{layer}self_attn.{name}_proj.bias", (HIDDEN,)
    yield layer + "self_attn.o_proj.weight", (HIDDEN, HIDDEN)
    yield layer + "mlp.gate_proj.weight", (INTERMEDIATE, HIDDEN)
    yield layer + "mlp.up_proj.weight", (INTERMEDIATE, HIDDEN)
    yield layer + "mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
    for name in (layer + "input_layernorm", layer + "post_attention_layernorm", "model.norm"):
        yield name + ".weight", (HIDDEN,)


def tensor_bytes(shape):
    """As bfloat16."""
    return 2 * math.prod(shape)


def write_split_model(folder, files):
    """A Hugging Face folder of so many files of about the same size: each has a part of the large tensors' names."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    noise = random.Random(8)
    parts = [[] for _ in range(files)]
    for number, (name, shape) in enumerate(shapes()):
        parts[number % files].append((name, shape))
    weight_map = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05}-of-{files:05}.safetensors"
        header, end = {}, 0
        for name, shape in part:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + tensor_bytes(shape)]}
            end += tensor_bytes(shape)
            weight_map[name] = file
        text = json.dumps(header).encode()
        (folder / file).write_bytes(len(text).to_bytes(8, "little") + text + noise.randbytes(end))
    index = {"metadata": {"total_size": sum(tensor_bytes(shape) for _, shape in shapes())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_large_checkpoint(folder):
    (folder / "huggingface").mkdir(parents=True)
    (folder / "huggingface" / "config.json").write_text(json.dumps(CONFIG))
    noise = random.Random(7)
    tensors = OrderedDict((name, Tensor(str(key), shape)) for key, (name, shape) in enumerate(shapes()))
    sys.modules.update(with_stand_ins())
    try:
        stream = io.BytesIO()
        Pickler(stream, protocol=2).dump(tensors)
    finally:
        del sys.modules["torch"], sys.modules["torch._utils"]
    with zipfile.ZipFile(folder / "model_world_size_1_rank_0.pt", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", stream.getvalue())
        archive.writestr("archive/byteorder", "little")
        for tensor in tensors.values():
            archive.writestr("archive/data/" + tensor.key, noise.randbytes(tensor_bytes(tensor.shape)))
        archive.writestr("archive/version", "3\n")
