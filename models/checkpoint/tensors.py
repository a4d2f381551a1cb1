"""Reads the tensors of a checkpoint, whole or not at all, and writes them."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.checkpoint.config import ModelConfig
from models.checkpoint.families import FAMILIES
from models.checkpoint.fields import read_json
from models.checkpoint.files import readable_as_usual
from models.checkpoint.like_bert import layer_prefix
from models.checkpoint.modules import head_tensors, read_head
from models.errors import UnsupportedCheckpoint

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The dtypes of weights; 8-bit floats would need the scales that go with them."""


def read_tensors(directory: Path, config: ModelConfig) -> dict[str, Tensor]:
    """Return all of the network's tensors under our names (`models.checkpoint.families`), shapes checked.

    Tensors of other heads (`cls.*`) and buffers are left out. `.bin` files are opened weights-only.
    Raises UnsupportedCheckpoint, which names the tensor that is missing, misshapen or unknown.
    """
    family = FAMILIES[config.family]
    found = family.ours(_read_files(directory), config)
    if head := read_head(directory):
        found |= head_tensors(head, config, _read_files)
    tensors: dict[str, Tensor] = {}
    integers = dict(int8_tensors(config)) if config.int8 else {}
    floats = {name: (shape, None) for name, shape in expected_shapes(config)}
    for name, (shape, dtype) in (floats | integers).items():
        tensor = found.get(name)
        name_there = family.their_name(name)
        if tensor is None:
            raise UnsupportedCheckpoint(f"{directory}: tensor {name_there} is missing")
        if tuple(tensor.shape) != shape:
            raise UnsupportedCheckpoint(
                f"{directory}: tensor {name_there} has shape {tuple(tensor.shape)}, config.json wants {shape}"
            )
        if tensor.dtype not in (_FLOATS if dtype is None else (dtype,)):
            wanted = dtype or "floating point of 16, 32 or 64 bits"
            raise UnsupportedCheckpoint(f"{directory}: tensor {name_there} is {tensor.dtype}, not {wanted}")
        if not torch.isfinite(tensor).all():
            raise UnsupportedCheckpoint(f"{directory}: tensor {name_there} holds NaN or infinite values")
        if name.endswith("_scale") and not ((tensor > 0) & torch.isfinite(1 / tensor)).all():
            raise UnsupportedCheckpoint(f"{directory}: tensor {name_there} holds a scale that is not above 0")
        tensors[name] = tensor
    unknown = sorted(name for name in found if name.startswith("bert.") and name not in tensors)
    if unknown:
        raise UnsupportedCheckpoint(
            f"{directory}: tensor {family.their_name(unknown[0])} does not belong to the network that "
            "config.json describes"
        )
    return tensors


def write_tensors(file: Path, tensors: Mapping[str, Tensor], config: ModelConfig) -> None:
    """Write the network's tensors to a safetensors file, as checkpoints of the family hold them."""
    theirs = FAMILIES[config.family].theirs(tensors, config)
    save_file({name: tensor.contiguous() for name, tensor in theirs.items()}, file, {"format": "pt"})
    readable_as_usual(file)


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Return every tensor of the network with its shape; narrower attention where heads are pruned."""
    return FAMILIES[config.family].expected(config)


def int8_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[tuple[int, ...], torch.dtype]]]:
    """Return the tensors, with shape and dtype, in which an int8 checkpoint differs from a float one.

    For each product of a layer (query, key, value, attention.output.dense, intermediate.dense, output.dense,
    and gate.dense of a gated network)
        weight             (out, in) int8      W'
        weight_scale       (out,)    float32   s_w: the value of one unit of the row's sum
        bias               (out,)    float     b', which includes the effect of the input's offset
    They mean y = s_w·(q − z)·W'ᵀ + b' for the quantized input q, from 0 to 255:
        query, key, value and intermediate.dense: x ≈ input_scale·(q − 128) + input_offset, z = 128, each
            (in,) float32 (the scales are folded into W', the offsets into b'); query, key and value share
            attention.self.input_scale and attention.self.input_offset;
        attention.output.dense: x ≈ q − 128, z = 128; its scales are folded into the rows of value, because
            softmax and head weights do not change them;
        output.dense: x ≈ input_scale·(q − z), and y is multiplied by input_scale; input_scale is () float32
            and z = input_zero_point () uint8.
    In a gated network, gate.dense reads what intermediate.dense reads, and output.dense has an input_scale
    and an input_offset like intermediate.dense.
    """
    hidden = config.hidden_size
    for layer, (kept, inner) in enumerate(zip(config.kept_heads, config.widths, strict=True)):
        prefix, width = layer_prefix(layer), len(kept) * config.head_size
        products = {
            **{f"attention.self.{name}": (width, hidden) for name in ("query", "key", "value")},
            "attention.output.dense": (hidden, width),
            "intermediate.dense": (inner, hidden),
            "output.dense": (hidden, inner),
        }
        if config.gated:
            products["gate.dense"] = (inner, hidden)
        for name, (rows, columns) in products.items():
            yield f"{prefix}{name}.weight", ((rows, columns), torch.int8)
            yield f"{prefix}{name}.weight_scale", ((rows,), torch.float32)
        inputs = {"attention.self": hidden, "intermediate.dense": hidden}
        if config.gated:
            inputs["output.dense"] = inner
        for name, columns in inputs.items():
            yield f"{prefix}{name}.input_scale", ((columns,), torch.float32)
            yield f"{prefix}{name}.input_offset", ((columns,), torch.float32)
        if not config.gated:
            yield f"{prefix}output.dense.input_scale", ((), torch.float32)
            yield f"{prefix}output.dense.input_zero_point", ((), torch.uint8)


def _shards(index: Path) -> list[str]:
    """Return the names of the files that an index names."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise UnsupportedCheckpoint(f"{index}: weight_map must map tensors to names of files")
    return sorted(set(weight_map.values()))


def _refuse_compressed(file: Path) -> None:
    """Raise ValueError if a pickled file unpacks to more bytes than it has; torch compresses none."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as parts:
            unpacked = sum(part.file_size for part in parts.infolist())
        if unpacked > file.stat().st_size:
            raise ValueError(f"it unpacks to {unpacked:,} bytes; save its tensors uncompressed")


def _read_files(directory: Path) -> Mapping[str, Tensor]:
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    pickled = directory / "pytorch_model.bin"
    try:
        if single.exists():
            whole: dict[str, Tensor] = load_file(single)
            return whole
        if index.exists():
            return {
                name: tensor
                for shard in _shards(index)
                for name, tensor in load_file(directory / Path(shard).name).items()
            }
        if pickled.exists():
            _refuse_compressed(pickled)
            loaded: Any = torch.load(pickled, map_location="cpu", weights_only=True)
            if not isinstance(loaded, Mapping) or not all(isinstance(t, Tensor) for t in loaded.values()):
                raise UnsupportedCheckpoint(f"{pickled} does not hold a plain dictionary of tensors")
            tensors: dict[str, Tensor] = dict(loaded)
            return tensors
    except pickle.UnpicklingError:  # torch's message says how to run the file's code
        raise UnsupportedCheckpoint(
            f"{directory}: the weights cannot be read: pytorch_model.bin is damaged, or holds Python objects "
            "that could run code; save its tensors as model.safetensors"
        ) from None
    except (
        SafetensorError,
        ValueError,
        KeyError,
        OSError,
        RuntimeError,
        EOFError,
    ) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedCheckpoint(f"{directory}: the weights cannot be read: {reason}") from None
    raise UnsupportedCheckpoint(f"{directory} holds neither model.safetensors nor pytorch_model.bin")
