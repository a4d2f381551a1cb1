"""Cuts heads, feed-forward units and layers out of a network's tensors."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.checkpoint.config import ModelConfig
from models.checkpoint.deberta import OWN_MAPS
from models.checkpoint.shapes import layer_prefix
from models.compress.structure import check
from models.errors import ModelError
from models.layer import head_rows
from models.masks.head_mask import HeadMask


def cut(
    tensors: Mapping[str, Tensor], config: ModelConfig, mask: HeadMask
) -> tuple[dict[str, Tensor], ModelConfig]:
    """Return a network's tensors and configuration without what a mask switches off.

    Weights of heads other than 1 are folded into W^O. The layers that stay are numbered anew from 0, units
    too; heads keep their numbers. A layer keeps at least one unit, with weight 0 if need be.
    Raises ModelError as `check` does.
    """
    check(mask, config)
    heads, units, left = config.heads_kept(mask), config.units_kept(mask), config.under(mask)
    smaller = {name: tensor for name, tensor in tensors.items() if not name.startswith(layer_prefix(0)[:-2])}
    for number, layer in enumerate(mask.layers_kept):
        prefix = layer_prefix(layer)
        of_layer = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        _cut_heads(of_layer, config, layer, heads[layer], mask.matrix[layer])
        _cut_units(of_layer, config, layer, units[layer])
        smaller |= {layer_prefix(number) + name.removeprefix(prefix): t for name, t in of_layer.items()}
    widths = tuple(max(1, width) for width in left.widths)
    return smaller, replace(left, intermediate_size=max(widths), widths=widths)


def _cut_heads(
    tensors: dict[str, Tensor],
    config: ModelConfig,
    layer: int,
    kept: tuple[int, ...],
    weights: NDArray[np.float32],
) -> None:
    prefix = f"{layer_prefix(layer)}attention."
    held = config.kept_heads[layer]
    rows = head_rows([held.index(head) for head in kept], config.head_size)
    shared, all_keys = config.key_heads(kept), sorted(set(config.key_heads(held)))
    keys = sorted(set(shared))
    key_rows = head_rows([all_keys.index(key) for key in keys], config.head_size)
    for name, chosen in (("query", rows), ("key", key_rows), ("value", key_rows)):
        for part in ("weight", "bias", "weight_scale") if config.int8 else ("weight", "bias"):
            tensors[f"{prefix}self.{name}.{part}"] = tensors[f"{prefix}self.{name}.{part}"][chosen]
    for name in OWN_MAPS.values():  # DeBERTa's, of distances
        for part in ("weight", "bias"):
            if (full := f"{prefix}self.{name}.{part}") in tensors:
                tensors[full] = tensors[full][rows]
    output = tensors[f"{prefix}output.dense.weight"][:, rows]
    scales = torch.from_numpy(weights[list(kept)]).repeat_interleave(config.head_size)
    if config.int8:  # integers cannot be scaled; the output of W^V is scaled instead
        of_keys = dict(zip(shared, weights[list(kept)].tolist(), strict=True))
        if any(of_keys[key] != weights[head] for key, head in zip(shared, kept, strict=True)):
            raise ModelError(
                f"layer {layer}: heads that share values have different weights, which 8-bit weights cannot "
                "hold; prune the float checkpoint, then quantize it"
            )
        scales = torch.tensor([of_keys[key] for key in keys]).repeat_interleave(config.head_size)
        for part in ("bias", "weight_scale"):
            tensors[f"{prefix}self.value.{part}"] = tensors[f"{prefix}self.value.{part}"] * scales
    elif (scales != 1).any():
        output = (output.float() * scales).to(output.dtype)
    tensors[f"{prefix}output.dense.weight"] = output


def _cut_units(tensors: dict[str, Tensor], config: ModelConfig, layer: int, kept: tuple[int, ...]) -> None:
    prefix, index = layer_prefix(layer), torch.tensor(kept or (0,), dtype=torch.int64)
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
    tensors[f"{down}weight"] = smaller if kept else torch.zeros_like(smaller)
