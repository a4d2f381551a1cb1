"""Removes what a mask switches off from a checkpoint: heads, feed-forward units and layers.

Without heads, the result has the layout that transformers 4 writes after `prune_heads`: `pruned_heads` in
config.json and narrower projections; heads keep the numbering of the unpruned model. The layers that stay are
numbered from 0, and `num_hidden_layers` is their number. If all layers have equally many units,
`intermediate_size` says how many; else it is the largest number, and `headroom.intermediate_sizes` says each.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.checkpoint.config import ModelConfig, parse_config, read_config, read_raw
from models.checkpoint.families import FAMILIES
from models.checkpoint.files import check_empty, copy_tokenizer
from models.checkpoint.shapes import layer_prefix
from models.checkpoint.tensors import read_tensors, write_tensors
from models.errors import ModelError
from models.layer import head_rows
from models.masks.head_mask import HeadMask, check_fits


def prune(source: Path, target: Path, mask: HeadMask) -> ModelConfig:
    """Write the checkpoint in `source` to the directory `target` without what a mask switches off.

    Weights between 0 and 1 are folded into the map that reads the head, so the result without a mask scores
    as the source does with it. The source's stored masks, which were measured on the larger model, stay
    there. Returns the new configuration.
    Raises ModelError if `target` is not empty, if the mask does not fit the checkpoint, or if it keeps no
    head, because every pair would then get the same score.
    """
    config = read_config(source)
    check_empty(target)
    tensors, smaller = cut(read_tensors(source, config), config, mask)
    return write_checkpoint(source, target, tensors, smaller)


def write_checkpoint(
    source: Path, target: Path, tensors: Mapping[str, Tensor], config: ModelConfig, **fields: Any
) -> ModelConfig:
    """Write another network than that of `source` to `target`, with the source's tokenizer.

    fields: what config.json says beside the shape, if it differs from the source's. Returns what it says.
    """
    raw = read_raw(source) | fields | FAMILIES[config.family].fields_of(config)
    gone = [[h for h in range(config.num_heads) if h not in kept] for kept in config.kept_heads]
    raw["pruned_heads"] = {str(layer): heads for layer, heads in enumerate(gone) if heads}
    ours = dict(raw.pop("headroom", None) or {})
    ours.pop("intermediate_sizes", None)
    if len(set(config.widths)) > 1:
        ours["intermediate_sizes"] = list(config.widths)
    if ours:
        raw["headroom"] = ours
    parsed = parse_config(raw)
    target.mkdir(parents=True, exist_ok=True)
    write_tensors(target / "model.safetensors", tensors, parsed)
    (target / "config.json").write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    copy_tokenizer(source, target)
    return parsed


def transformers_refusal(config: ModelConfig) -> str | None:
    """Return why transformers cannot load a checkpoint of this configuration; None if it can."""
    if not FAMILIES[config.family].in_transformers:
        return "transformers has no network of its family"
    if config.int8:
        return "its weights are int8"
    if len(set(config.widths)) > 1:
        return "its layers have different numbers of feed-forward units"
    if any(len(kept) < config.num_heads for kept in config.kept_heads):
        return "some of its heads are removed, which transformers 5 no longer reads (transformers 4 does)"
    return None


def whole(config: ModelConfig) -> HeadMask:
    """Return the mask that keeps everything that the checkpoint has."""
    heads = np.zeros((config.num_layers, config.num_heads), np.float32)
    for layer, held in enumerate(config.kept_heads):
        heads[layer, list(held)] = 1
    return HeadMask(heads)


def cut(
    tensors: Mapping[str, Tensor], config: ModelConfig, mask: HeadMask
) -> tuple[dict[str, Tensor], ModelConfig]:
    """Return a network's tensors and configuration without what a mask switches off.

    Weights of heads other than 1 are folded into W^O. The layers that stay are numbered anew from 0, units
    too; heads keep their numbers. A layer keeps at least one unit, with weight 0 if need be.
    Raises InvalidMask if the mask is for a model of another shape; ModelError if no head would be left, or
    if the family cannot be without one of the layers.
    """
    check_fits(mask, config.num_layers, config.num_heads, config.intermediate_size)
    config.check_head_left(mask)
    heads, units, left = config.heads_kept(mask), config.units_kept(mask), config.under(mask)
    family = FAMILIES[config.family]
    if family.keeps_first_layer and 0 in mask.skipped:
        raise ModelError(
            f"layer 0 of a {family.network} cannot be removed: the layer after it has a norm of its own, "
            "which the format does not allow in the first place"
        )
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
        _keep_rows(tensors, config, f"{prefix}self.{name}", chosen)
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
        _keep_rows(tensors, config, prefix + name, index)
    down = f"{prefix}output.dense."
    whole = tensors[f"{down}weight"]
    if config.int8 and config.gated:  # each unit has a midpoint, whose effect stands in the bias
        scale, offset = (tensors[f"{down}input_{part}"] for part in ("scale", "offset"))
        gone = torch.ones(len(scale), dtype=torch.bool)
        gone[index] = False
        effect = (whole[:, gone].float() @ (offset / scale)[gone]) * tensors[f"{down}weight_scale"]
        tensors[f"{down}bias"] = (tensors[f"{down}bias"].float() - effect).to(tensors[f"{down}bias"].dtype)
        tensors |= {f"{down}input_scale": scale[index], f"{down}input_offset": offset[index]}
    smaller = whole[:, index]
    tensors[f"{down}weight"] = smaller if kept else torch.zeros_like(smaller)


def _keep_rows(tensors: dict[str, Tensor], config: ModelConfig, name: str, rows: Tensor) -> None:
    """Keep these rows, the outputs, of a map."""
    for part in ("weight", "bias", "weight_scale") if config.int8 else ("weight", "bias"):
        tensors[f"{name}.{part}"] = tensors[f"{name}.{part}"][rows]
