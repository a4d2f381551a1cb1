"""Reads the tensors of a checkpoint, whole or not at all, and writes them."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.checkpoint.config import ModelConfig
from models.checkpoint.decoder import answer_row
from models.checkpoint.families import FAMILIES
from models.checkpoint.fields import check
from models.checkpoint.files import OF_PARENT, readable_as_usual, shared_tensors, weight_files
from models.checkpoint.modules import head_tensors
from models.checkpoint.shapes import expected_shapes, int8_shapes
from models.errors import UnsupportedCheckpoint

_CLASSIFIER = ("bert.pooler.", "classifier.")

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The dtypes of weights; 8-bit floats would need the scales that go with them."""


def read_tensors(directory: Path, config: ModelConfig, *, new_classifier: bool = False) -> dict[str, Tensor]:
    """Return all of the network's tensors under our names (`models.checkpoint.families`), shapes checked.

    Tensors of other heads (`cls.*`) and buffers are left out. `.bin` files are opened weights-only.
    new_classifier: parts of the classifier that are missing, or have another number of labels, are random.
    Raises UnsupportedCheckpoint, which names the tensor that is missing, misshapen or unknown.
    """
    family = FAMILIES[config.family]
    stored = _read_files(directory)
    found = family.ours(stored, config)
    if config.decoder is not None and config.decoder.vocabulary is not None:
        found["classifier.weight"] = answer_row(config.decoder, stored)
    found |= head_tensors(directory, config, _read_files)
    tensors: dict[str, Tensor] = {}
    integers: dict[str, tuple[tuple[int, ...], torch.dtype | None]] = {}
    if config.int8:
        integers = {name: (shape, getattr(torch, kind)) for name, (shape, kind) in int8_shapes(config)}
    floats = {name: (shape, None) for name, shape in expected_shapes(config)}
    for name, (shape, dtype) in (floats | integers).items():
        tensor = found.get(name)
        if new_classifier and name.startswith(_CLASSIFIER) and (tensor is None or tensor.shape != shape):
            tensor = _initial(name, shape)
        shown = f"{directory}: tensor {family.their_name(name)}"
        if tensor is None:
            raise UnsupportedCheckpoint(f"{shown} is missing")
        there, wanted = tuple(tensor.shape), dtype or "floating point of 16, 32 or 64 bits"
        check(there == shape, f"{shown} has shape {there}, config.json wants {shape}")
        is_right = tensor.dtype in (_FLOATS if dtype is None else (dtype,))
        check(is_right, f"{shown} is {tensor.dtype}, not {wanted}")
        check(bool(torch.isfinite(tensor).all()), f"{shown} holds NaN or infinite values")
        is_right = not name.endswith("_scale") or bool(((tensor > 0) & torch.isfinite(1 / tensor)).all())
        check(is_right, f"{shown} holds a scale that is not above 0")
        tensors[name] = tensor
    unknown = min(found.keys() - tensors.keys(), default=None)
    wanted = "does not belong to the network that config.json describes"
    check(unknown is None, f"{directory}: tensor {unknown} {wanted}")
    return tensors


def _initial(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the usual first weights of a part of a classifier (Devlin et al. 2019)."""
    if name.endswith("LayerNorm.weight"):
        return torch.ones(shape)
    return torch.zeros(shape) if name.endswith(".bias") else torch.randn(shape) * 0.02


def write_tensors(file: Path, tensors: Mapping[str, Tensor], config: ModelConfig) -> None:
    """Write the network's tensors to a safetensors file, as checkpoints of the family hold them."""
    theirs = FAMILIES[config.family].theirs(tensors, config)
    save_file({name: tensor.contiguous() for name, tensor in theirs.items()}, file, {"format": "pt"})
    readable_as_usual(file)


def _refuse_compressed(file: Path) -> None:
    """Raise ValueError if a pickled file unpacks to more bytes than it has; torch compresses none."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as parts:
            unpacked = sum(part.file_size for part in parts.infolist())
        if unpacked > file.stat().st_size:
            raise ValueError(f"it unpacks to {unpacked:,} bytes; save its tensors uncompressed")


def _read_files(directory: Path) -> Mapping[str, Tensor]:
    """Return the tensors in the weights of a directory, under the names that they have there."""
    names = weight_files(directory, [file.name for file in directory.iterdir()])
    check(bool(names), f"{directory} holds neither model.safetensors nor pytorch_model.bin")
    try:
        if names != ["pytorch_model.bin"]:
            found: dict[str, Tensor] = {}
            for file in names:
                tensors = load_file(directory / file)
                if file == OF_PARENT:
                    tensors = {name: tensors[name] for name in shared_tensors(directory)}
                found |= tensors
            return found
        pickled = directory / "pytorch_model.bin"
        _refuse_compressed(pickled)
        loaded: Any = torch.load(pickled, map_location="cpu", weights_only=True)
        is_right = isinstance(loaded, Mapping) and all(isinstance(t, Tensor) for t in loaded.values())
        check(is_right, f"{pickled} does not hold a plain dictionary of tensors")
        return dict(loaded)
    except pickle.UnpicklingError:  # torch's message says how to run the file's code
        raise UnsupportedCheckpoint(
            f"{directory}: the weights cannot be read: pytorch_model.bin is damaged, or holds Python objects "
            "that could run code; save its tensors as model.safetensors"
        ) from None
    except (SafetensorError, ValueError, KeyError, OSError, RuntimeError, EOFError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedCheckpoint(f"{directory}: the weights cannot be read: {reason}") from None
