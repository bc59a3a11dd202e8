"""The checkpoint's files: safetensors shards with an index, read and written without a library."""
import json
import pathlib
import struct
from typing import NamedTuple

import torch

import quantisers

INDEX = "model.safetensors.index.json"
# 8-bit kinds are handled as bytes.
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I8": torch.uint8,
          "F8_E4M3": torch.uint8, "F8_E8M0": torch.uint8}


class Stored(NamedTuple):
    """A tensor as a file has it."""
    dtype: str
    shape: list
    data: bytes

    def tensor(self):
        return torch.frombuffer(bytearray(self.data), dtype=DTYPES[self.dtype]).reshape(self.shape)


def read_shards(folder) -> dict:
    """{name: Stored} of all shards."""
    folder = pathlib.Path(folder)
    shards = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
    out = {}
    for shard in shards:
        raw = (folder / shard).read_bytes()
        begin = 8 + struct.unpack_from("<Q", raw)[0]
        for name, entry in json.loads(raw[8:begin]).items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                out[name] = Stored(entry["dtype"], entry["shape"], raw[begin + first:begin + last])
    return out


def write_shards(tensors: dict, folder, shard_bytes):
    """Writes {name: Stored} in shards of at most shard_bytes, names in order, and the index."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shards, size = [[]], 0
    for name in sorted(tensors):
        count = len(tensors[name].data)
        if shards[-1] and size + count > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += count
    weight_map = {}
    for k, names in enumerate(shards):
        file = f"model-{k + 1:05d}-of-{len(shards):05d}.safetensors"
        weight_map.update(dict.fromkeys(names, file))
        _write_shard(folder / file, {name: tensors[name] for name in names})
    total = sum(len(t.data) for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, separators=(",", ":")))
    print(f"{len(tensors)} tensors, {total} bytes, {len(shards)} shards")


def _write_shard(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        end = offset + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(t.data for t in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def load_weights(folder, device="cpu") -> dict:
    """All tensors of the checkpoint by name, dequantised to float32."""
    raw = {name: (s.dtype, s.tensor().to(device)) for name, s in read_shards(folder).items()}
    out = {}
    for name, (dtype, t) in raw.items():
        if name.endswith(".scale"):
            continue
        if dtype in ("I8", "F8_E4M3"):
            scale = quantisers.e8m0_value(raw[name[:-len("weight")] + "scale"][1])
            if dtype == "F8_E4M3" and not name.endswith("embed.weight"):
                scale = scale.repeat_interleave(32, 0)
            value = quantisers.unpack_e2m1(t) if dtype == "I8" else quantisers.e4m3_value(t)
            out[name] = value * scale.repeat_interleave(32, -1)
        else:
            out[name] = t.to(torch.float32)
    return out
