"""Reads and writes a query generator's weights, beside the checkpoint whose encoder it reads."""

import json
from dataclasses import asdict, fields
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from headroom.models.checkpoint.fields import check
from headroom.models.checkpoint.files import GENERATOR, readable_as_usual
from headroom.models.errors import UnsupportedCheckpoint, first_line
from headroom.models.generate.network import GeneratorConfig, GeneratorNetwork


def write_generator(directory: Path, network: GeneratorNetwork) -> None:
    """Write a generator's weights into the directory of its encoder's checkpoint, in float16.

    The file's metadata holds its shape.
    """
    tensors = {name: tensor.detach().half().contiguous() for name, tensor in network.named_parameters()}
    tensors["pieces"] = network.pieces.int()
    save_file(
        tensors, directory / GENERATOR, {"format": "pt", "generator": json.dumps(asdict(network.config))}
    )
    readable_as_usual(directory / GENERATOR)


def read_generator(directory: Path, words: Tensor, dropout: float = 0.0) -> GeneratorNetwork:
    """Return the generator of a checkpoint's directory, in the dtype and on the device of `words`.

    words: (vocabulary, D), the encoder's word embeddings. Raises UnsupportedCheckpoint for a file that is
    damaged or belongs to another encoder.
    """
    file = directory / GENERATOR
    try:
        with safe_open(file, "pt") as opened:
            shape = json.loads((opened.metadata() or {})["generator"])
        tensors = load_file(file)
        config = GeneratorConfig(**{field.name: int(shape[field.name]) for field in fields(GeneratorConfig)})
    except Exception as error:  # of many types
        raise UnsupportedCheckpoint(f"{file} cannot be read: {first_line(error)}") from None
    vocabulary, width = words.shape
    check(config.width == width, f"{file} is for an encoder of width {config.width}; this one has {width}")
    pieces = tensors.pop("pieces", torch.empty(0))
    fits = len(pieces) == config.output_pieces and bool(((pieces >= 0) & (pieces < vocabulary)).all())
    check(fits, f"{file}: pieces do not belong to a vocabulary of {vocabulary}")
    network = GeneratorNetwork(config, pieces.to(words.device), words, dropout)
    for name, weight in network.named_parameters():
        tensor = tensors.pop(name, None)
        is_right = tensor is not None and tensor.shape == weight.shape
        check(is_right, f"{file}: tensor {name} is missing or misshapen")
        check(torch.isfinite(tensor).all(), f"{file}: tensor {name} holds NaN or infinite values")
        weight.data = tensor.to(words.device, words.dtype)
    check(not tensors, f"{file}: tensor {min(tensors, default='')} does not belong to a generator")
    return network
