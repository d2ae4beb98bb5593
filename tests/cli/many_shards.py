"""Writes a Hugging Face folder of very many small files, or of one large file, and reads one file of weights back, without PyTorch."""
import json
import struct


CONFIG = {"architectures": ["ManyShards"], "model_type": "many_shards", "dtype": "float32"}


def write_sparse_model(folder, size):
    """One tensor of `size` bytes, all zero, which take no room on the disk; returns the size of the file that a merge writes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    header = json.dumps({"weight": {"dtype": "F32", "shape": [size // 4096, 1024], "data_offsets": [0, size]}}).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    written = json.dumps({"__metadata__": {"format": "pt"}, "weight": {"dtype": "F32", "shape": [size // 4096, 1024], "data_offsets": [0, size]}},
                         separators=(",", ":"))
    return 8 + (len(written) + 7) // 8 * 8 + size


def write_many_shards(folder, count):
    """`count` files with one tensor each; returns {name: its bytes}. The model type is nobody's: names pass through as they are."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    contents, weight_map = {}, {}
    for i in range(count):
        name, file = f"block.{i}.weight", f"model-{i + 1:05}-of-{count:05}.safetensors"
        contents[name], weight_map[name] = struct.pack("<4f", *(i + j / 4 for j in range(4))), file
        header = json.dumps({name: {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(header)) + header + contents[name])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 16 * count}, "weight_map": weight_map}))
    return contents


def write_row_shards(folder, count, tensors=12, columns=512, rows=16):
    """Files of `count` ranks (DCP's HuggingFaceStorageWriter), each with some rows of every tensor, 1 MiB a tensor for 32 ranks; returns {name: its bytes}."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    size = rows * columns * 4
    contents = {f"block.{i}.weight": b"" for i in range(tensors)}
    for rank in range(count):
        header, data = {}, b""
        for i, name in enumerate(contents):
            header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [i * size, (i + 1) * size]}
            piece = struct.pack("<2f", rank, i) * (size // 8)
            contents[name] += piece
            data += piece
        sharding = {name: {"saved_offsets": [rank * rows, 0]} for name in contents}
        header["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps(sharding), "DCP_VERSION": "1.0", "format": "pt"}
        text = json.dumps(header).encode()
        (folder / f"shard-{rank + 1:05}-model-00001-of-00001.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return contents


def read_safetensors(path):
    """{name: its bytes}"""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {name: entry["data_offsets"] for name, entry in json.loads(data[8:8 + size]).items() if name != "__metadata__"}
    return {name: data[8 + size + begin:8 + size + end] for name, (begin, end) in tensors.items()}
