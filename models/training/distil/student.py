"""The student's network before it learns: a checkpoint, or what is kept of one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headroom.models.arrays import Ints
from headroom.models.checkpoint.config import ModelConfig, classifier_fields, read_raw
from headroom.models.checkpoint.shapes import layer_prefix
from headroom.models.checkpoint.tensors import TensorDict, read_tensors
from headroom.models.compress.prune import cut
from headroom.models.masks.head_mask import HeadMask
from headroom.models.training.distil.job import StudentSize, is_plain_encoder, mask_of


def read_student(
    source: Path, config: ModelConfig, wanted: StudentSize, layers: Sequence[int]
) -> tuple[TensorDict, ModelConfig]:
    """Return the tensors and the configuration of what is kept of a checkpoint.

    layers: those that stay, unless a mask says what does. A plain encoder gets a classifier with random
    weights. Raises ModelError if no head would be left.
    """
    torch.manual_seed(0)
    tensors = read_tensors(source, config, new_classifier=True)
    if wanted.mask is not None:
        mask = mask_of(source, config, wanted.mask)
    elif wanted.keeps_all:
        return tensors, config
    else:
        mask = kept_mask(tensors, config, wanted, layers)
    return cut(tensors, config, mask)


def kept_mask(
    tensors: TensorDict, config: ModelConfig, wanted: StudentSize, layers: Sequence[int]
) -> HeadMask:
    """Return the mask that keeps these layers, and as many heads and units in each as wanted: those with the
    largest weights."""
    intact = config.intact_mask
    matrix = intact.matrix.copy()
    off = np.zeros((config.num_layers, config.intermediate_size), np.bool_)
    for layer in layers:
        held = config.kept_heads[layer]
        if wanted.heads is not None and wanted.heads < len(held):
            for index in _smallest(_head_sizes(tensors, config, layer), len(held) - wanted.heads):
                matrix[layer, held[index]] = 0
        width = config.widths[layer]
        if wanted.units is not None and wanted.units < width:
            off[layer, _smallest(_unit_sizes(tensors, layer), width - wanted.units)] = True
    skipped = tuple(sorted({*range(config.num_layers)} - set(layers)))
    return replace(HeadMask(matrix, units_off=off if off.any() else None), skipped=skipped)


def _head_sizes(tensors: TensorDict, config: ModelConfig, layer: int) -> Tensor:
    """Return the norm of each held head's part of W^O, (heads,)."""
    output = tensors[f"{layer_prefix(layer)}attention.output.dense.weight"].float()
    by_head = output.reshape(len(output), -1, config.head_size)
    return by_head.square().sum((0, 2)).sqrt()


def _unit_sizes(tensors: TensorDict, layer: int) -> Tensor:
    """Return the product of the norms of each unit's weights in the up and the down map, (units,)."""
    prefix = layer_prefix(layer)
    up = tensors[f"{prefix}intermediate.dense.weight"].float().square().sum(1)
    down = tensors[f"{prefix}output.dense.weight"].float().square().sum(0)
    return (up * down).sqrt()


def _smallest(sizes: Tensor, count: int) -> Ints:
    return np.asarray(sizes.argsort(stable=True)[:count].numpy())


def fields_of(source: Path, config: ModelConfig) -> dict[str, Any]:
    """Return what config.json says of a student's classifier, if the source is a plain encoder without one:
    nothing of a classifier that the source may have had."""
    if not is_plain_encoder(source):
        return {}
    raw = read_raw(source)
    ours = raw.get("headroom") or {}
    return classifier_fields(raw, config.labels) | {
        "headroom": {name: value for name, value in ours.items() if name not in ("temperature", "bias")},
    }
