"""Reads the tensors of a checkpoint, whole or not at all, and writes them."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headroom.models.checkpoint.decoder import answer_row
from headroom.models.checkpoint.families import FAMILIES
from headroom.models.checkpoint.fields import check
from headroom.models.checkpoint.files import OF_PARENT, check_weights, readable_as_usual, weight_map
from headroom.models.checkpoint.model_config import ModelConfig
from headroom.models.checkpoint.modules import head_tensors
from headroom.models.checkpoint.shapes import expected_shapes, int8_shapes
from headroom.models.errors import UnsupportedCheckpoint, first_line

TensorDict = dict[str, Tensor]
"""Tensors by name."""

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The dtypes of weights; 8-bit floats would need the scales that go with them."""


def read_tensors(directory: Path, config: ModelConfig, *, new_classifier: bool = False) -> TensorDict:
    """Return all of the network's tensors under our names (`headroom.models.checkpoint.families`), shapes
    checked.

    Tensors of other heads (`cls.*`) and buffers are left out. `.bin` files are opened weights-only.
    new_classifier: parts of the classifier that are missing, or have another number of labels, are random.
    Raises UnsupportedCheckpoint, which names the tensor that is missing, misshapen or unknown.
    """
    family = FAMILIES[config.family]
    stored = _stored(directory)
    ours = family.ours(stored, config)
    if config.decoder is not None and config.decoder.vocabulary is not None:
        ours["classifier.weight"] = answer_row(config.decoder, stored)
    ours |= head_tensors(directory, config, stored)
    expected: dict[str, tuple[tuple[int, ...], str]] = {
        name: (shape, "") for name, shape in expected_shapes(config)
    }
    if config.int8:
        expected |= int8_shapes(config)
    tensors: TensorDict = {}
    for name, (shape, dtype) in expected.items():
        tensor = ours.get(name)
        is_new = new_classifier and name.startswith(("bert.pooler.", "classifier."))
        if is_new and (tensor is None or tensor.shape != shape):
            tensor = _new_tensor(name, shape)
        described = f"{directory}: tensor {family.their_name(name)}"
        tensors[name] = _checked(described, tensor, shape, dtype)
    unknown = min(ours.keys() - tensors.keys(), default=None)
    problem = "does not belong to the network that config.json describes"
    check(unknown is None, f"{directory}: tensor {unknown} {problem}")
    return tensors


def _new_tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the first values of a part of the classifier (Devlin et al. 2019)."""
    if name.endswith("LayerNorm.weight"):
        return torch.ones(shape)
    return torch.zeros(shape) if name.endswith(".bias") else torch.randn(shape) * 0.02


def _checked(name: str, tensor: Tensor | None, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Return a tensor of this shape and dtype. name: begins the message. dtype: "" for the floating ones."""
    if tensor is None:
        raise UnsupportedCheckpoint(f"{name} is missing")
    stored_shape = tuple(tensor.shape)
    check(stored_shape == shape, f"{name} has shape {stored_shape}, config.json wants {shape}")
    dtypes = (getattr(torch, dtype),) if dtype else _FLOATS
    wanted = f"torch.{dtype}" if dtype else "floating point of 16, 32 or 64 bits"
    check(tensor.dtype in dtypes, f"{name} is {tensor.dtype}, not {wanted}")
    check(torch.isfinite(tensor).all(), f"{name} holds NaN or infinite values")
    is_right = not name.endswith("_scale") or bool((tensor > 0).all())
    check(is_right, f"{name} holds a scale that is not above 0")
    return tensor


def write_tensors(file: Path, tensors: Mapping[str, Tensor], config: ModelConfig) -> None:
    """Write the network's tensors to a safetensors file, as checkpoints of the family hold them."""
    theirs = FAMILIES[config.family].theirs(tensors, config)
    save_file({name: tensor.contiguous() for name, tensor in theirs.items()}, file, {"format": "pt"})
    readable_as_usual(file)


def _stored(directory: Path) -> TensorDict:
    """Return the tensors of a checkpoint under their names there; a module's begins with its folder's."""
    stored: TensorDict = {}
    files = check_weights(directory)
    try:
        for file in files:
            name = file.relative_to(directory).as_posix()
            tensors = load_file(file) if file.suffix == ".safetensors" else _unpickled(file)
            if name == OF_PARENT:
                of_parent = {one for one, shard in weight_map(directory).items() if shard == OF_PARENT}
                stored |= {one: tensors[one] for one in of_parent}
            else:
                folder = name.removesuffix(file.name)
                stored |= {f"{folder}{one}": tensor for one, tensor in tensors.items()}
    except pickle.UnpicklingError:  # torch's message says how to run the file's code
        raise UnsupportedCheckpoint(
            f"{directory}: the weights cannot be read: pytorch_model.bin is damaged, or holds Python objects "
            "that could run code; save its tensors as model.safetensors"
        ) from None
    except Exception as error:  # of many types
        raise UnsupportedCheckpoint(f"{directory}: the weights cannot be read: {first_line(error)}") from None
    return stored


def _unpickled(file: Path) -> TensorDict:
    """Return the tensors in a pickled file. Raises ValueError if it unpacks to more bytes than it has; torch
    compresses none."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as parts:
            unpacked = sum(part.file_size for part in parts.infolist())
        if unpacked > file.stat().st_size:
            raise ValueError(f"it unpacks to {unpacked:,} bytes; save its tensors uncompressed")
    tensors: TensorDict = torch.load(file, map_location="cpu", weights_only=True)
    return tensors
