"""Which heads, feed-forward units and layers of a checkpoint stay, and the smaller network that they make.

A unit is one of the inner activations of a layer's feed-forward half: a row of the up map (and of the gate)
and a column of the down map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.checkpoint.config import ModelConfig
from models.checkpoint.families import FAMILIES
from models.checkpoint.like_bert import layer_prefix
from models.errors import ModelError
from models.head_mask import HeadMask
from models.live_heads import head_rows

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Structure:
    """By how much each part's output is multiplied; a part of weight 0 goes.

    heads: (layers, heads), numbered as before pruning. units: (layers, units of the widest layer); what is
    beyond a layer's own width is ignored. skipped: the layers that go whole: what enters them passes through.
    """

    heads: Floats
    units: Floats
    skipped: frozenset[int] = frozenset()

    @classmethod
    def whole(cls, config: ModelConfig) -> Structure:
        """Return the structure that keeps everything."""
        heads = np.ones((config.num_layers, config.num_heads), np.float32)
        return cls(heads, np.ones((config.num_layers, max(config.widths)), np.float32))

    @property
    def layers(self) -> tuple[int, ...]:
        """Return the layers that stay, ascending."""
        return tuple(layer for layer in range(len(self.heads)) if layer not in self.skipped)

    def mask(self, config: ModelConfig) -> HeadMask:
        """Return the run-time mask of a structure whose weights are 0 or 1; other weights become 1."""
        heads = np.zeros_like(self.heads)
        for layer, kept in enumerate(self.kept_heads(config)):
            heads[layer, list(kept)] = 1
        beyond = np.arange(self.units.shape[1]) >= np.array(config.widths)[:, None]
        return HeadMask(heads, tuple(sorted(self.skipped)), (self.units == 0) & ~beyond)

    @property
    def is_binary(self) -> bool:
        """Return whether every weight is 0 or 1."""
        return all(bool(((matrix == 0) | (matrix == 1)).all()) for matrix in (self.heads, self.units))

    def kept_heads(self, config: ModelConfig) -> tuple[tuple[int, ...], ...]:
        """Return the heads that stay, by layer of the source; none in a layer that goes."""
        return tuple(
            tuple(head for head in held if layer not in self.skipped and self.heads[layer, head] > 0)
            for layer, held in enumerate(config.kept_heads)
        )

    def kept_units(self, config: ModelConfig) -> tuple[tuple[int, ...], ...]:
        """Return the units that stay, by layer of the source; none in a layer that goes."""
        return tuple(
            ()
            if layer in self.skipped
            else tuple(int(unit) for unit in np.flatnonzero(self.units[layer, :width]))
            for layer, width in enumerate(config.widths)
        )


def cut(
    tensors: Mapping[str, Tensor], config: ModelConfig, structure: Structure
) -> tuple[dict[str, Tensor], ModelConfig]:
    """Return a network's tensors and configuration without the parts that go.

    Weights other than 1 are folded into the map that reads the part. The layers that stay are numbered anew
    from 0, units too; heads keep their numbers. A layer keeps at least one unit, with weight 0 if need be.
    Raises ModelError if no head would be left, or if the format cannot hold the result.
    """
    heads, units = structure.kept_heads(config), structure.kept_units(config)
    if not any(heads):
        raise ModelError(
            f"that would remove all {sum(map(len, config.kept_heads))} heads, and without any every pair "
            "gets the same score; keep at least one"
        )
    _check_int8(config, structure)
    FAMILIES[config.family].check_removable(structure.skipped)
    layers = structure.layers
    smaller = {name: tensor for name, tensor in tensors.items() if not name.startswith(layer_prefix(0)[:-2])}
    for number, layer in enumerate(layers):
        prefix = layer_prefix(layer)
        of_layer = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        _cut_heads(of_layer, config, layer, heads[layer], structure.heads[layer])
        _cut_units(of_layer, config, layer, units[layer] or (0,), structure.units[layer])
        smaller |= {layer_prefix(number) + name.removeprefix(prefix): t for name, t in of_layer.items()}
    widths = tuple(max(1, len(units[layer])) for layer in layers)
    shape = FAMILIES[config.family].of_layers(config, layers)
    return smaller, replace(
        shape,
        kept_heads=tuple(heads[layer] for layer in layers),
        intermediate_size=max(widths),
        widths=widths,
    )


def _check_int8(config: ModelConfig, structure: Structure) -> None:
    if not config.int8:
        return
    kept = [structure.units[layer, list(units)] for layer, units in enumerate(structure.kept_units(config))]
    if structure.heads.max() > 1 or any((weights != 1).any() for weights in kept):
        raise ModelError(
            "the checkpoint is quantized, and its 8 bits leave no room for tuned scales; prune the float "
            "checkpoint it was made from, then quantize the result"
        )


def _cut_heads(
    tensors: dict[str, Tensor], config: ModelConfig, layer: int, kept: tuple[int, ...], weights: Floats
) -> None:
    prefix = f"{layer_prefix(layer)}attention."
    held = config.kept_heads[layer]
    rows = head_rows([held.index(head) for head in kept], config.head_size)
    for name in ("query", "key", "value"):
        for part in ("weight", "bias", "weight_scale") if config.int8 else ("weight", "bias"):
            tensors[f"{prefix}self.{name}.{part}"] = tensors[f"{prefix}self.{name}.{part}"][rows]
    output = tensors[f"{prefix}output.dense.weight"][:, rows]
    scales = torch.from_numpy(weights[list(kept)]).repeat_interleave(config.head_size)
    if config.int8:  # integers cannot be scaled; the output of W^V is scaled instead
        for part in ("bias", "weight_scale"):
            tensors[f"{prefix}self.value.{part}"] = tensors[f"{prefix}self.value.{part}"] * scales
    else:
        output = _scaled(output, scales)
    tensors[f"{prefix}output.dense.weight"] = output


def _cut_units(
    tensors: dict[str, Tensor], config: ModelConfig, layer: int, kept: tuple[int, ...], weights: Floats
) -> None:
    prefix, index = layer_prefix(layer), torch.tensor(kept, dtype=torch.int64)
    for name in ("intermediate.dense", "gate.dense") if config.gated else ("intermediate.dense",):
        for part in ("weight", "bias", "weight_scale") if config.int8 else ("weight", "bias"):
            tensors[f"{prefix}{name}.{part}"] = tensors[f"{prefix}{name}.{part}"][index]
    down = f"{prefix}output.dense."
    whole = tensors[f"{down}weight"]
    if config.int8 and config.gated:  # each unit has a midpoint, whose effect stands in the bias
        scale, offset = (tensors[f"{down}input_{part}"] for part in ("scale", "offset"))
        gone = torch.ones(len(scale), dtype=torch.bool)
        gone[index] = False
        effect = (whole[:, gone].float() @ (offset / scale)[gone]) * tensors[f"{down}weight_scale"]
        tensors[f"{down}bias"] = (tensors[f"{down}bias"].float() - effect).to(tensors[f"{down}bias"].dtype)
        for part in ("scale", "offset"):
            tensors[f"{down}input_{part}"] = tensors[f"{down}input_{part}"][index]
    smaller = whole[:, index]
    scales = torch.from_numpy(weights[list(kept)])
    if not config.int8:
        smaller = _scaled(smaller, scales)
    elif not scales.any():  # the one unit that a layer without units keeps
        smaller = torch.zeros_like(smaller)
    tensors[f"{down}weight"] = smaller


def _scaled(columns: Tensor, scales: Tensor) -> Tensor:
    return (columns.float() * scales).to(columns.dtype) if (scales != 1).any() else columns
