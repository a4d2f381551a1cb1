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

import torch
from torch import Tensor

from headroom.models.checkpoint.config import ModelConfig, parse_config, read_config, read_raw
from headroom.models.checkpoint.families import FAMILIES, removable_layers
from headroom.models.checkpoint.files import check_empty, copy_tokenizer
from headroom.models.checkpoint.shapes import layer_prefix
from headroom.models.checkpoint.tensor_names import LAYERS
from headroom.models.checkpoint.tensors import TensorDict, read_tensors, write_tensors
from headroom.models.errors import ModelError
from headroom.models.layer import head_rows
from headroom.models.masks.head_mask import HeadMask, check_fits


def prune(source: Path, target: Path, mask: HeadMask, config: ModelConfig | None = None) -> ModelConfig:
    """Write the checkpoint in `source` to the directory `target` without what a mask switches off.

    Weights between 0 and 1 are folded into the map that reads the head, so the result without a mask scores
    as the source does with it. The source's stored masks, which were measured on the larger model, stay
    there. config: of the source, if its labels are in another order than config.json says. Returns the new
    configuration.
    Raises ModelError if `target` is not empty, if the mask does not fit the checkpoint, or if it keeps no
    head, because every pair would then get the same score.
    """
    config = config or read_config(source)
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
    pruned = [sorted({*range(config.num_heads)} - {*kept}) for kept in config.kept_heads]
    raw["pruned_heads"] = {str(layer): heads for layer, heads in enumerate(pruned) if heads}
    headroom = dict(raw.pop("headroom", None) or {})
    headroom.pop("intermediate_sizes", None)
    headroom.pop("label_order", None)
    if len(set(config.widths)) > 1:
        headroom["intermediate_sizes"] = list(config.widths)
    by_names = parse_config(raw | {"headroom": headroom})
    if config.is_order_known and (by_names.labels != config.labels or not by_names.is_order_known):
        headroom["label_order"] = list(config.labels)
    if headroom:
        raw["headroom"] = headroom
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


def cut(tensors: Mapping[str, Tensor], config: ModelConfig, mask: HeadMask) -> tuple[TensorDict, ModelConfig]:
    """Return a network's tensors and configuration without what a mask switches off.

    Weights of heads other than 1 are folded into W^O. The layers that stay are numbered anew from 0, units
    too; heads keep their numbers. A layer keeps at least one unit, with weight 0 if need be.
    Raises InvalidMask if the mask is for a model of another shape; ModelError if no head would be left, or
    if the family cannot be without one of the layers.
    """
    check_fits(mask, config.num_layers, config.num_heads, config.intermediate_size)
    config.check_head_left(mask)
    if not set(mask.skipped) <= set(removable_layers(config)):
        network = FAMILIES[config.family].network
        raise ModelError(
            f"layer 0 of a {network} cannot be removed: the layer after it has a norm of its own, which the "
            "format does not allow in the first place"
        )
    heads = config.heads_kept(mask)
    units = config.units_kept(mask)
    smaller = {name: tensor for name, tensor in tensors.items() if not name.startswith(LAYERS)}
    for number, layer in enumerate(mask.layers_kept):
        prefix = layer_prefix(layer)
        of_layer = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        _cut_heads(of_layer, config, layer, heads[layer], torch.tensor(mask.matrix[layer]))
        _cut_units(of_layer, config, layer, units[layer])
        smaller |= {layer_prefix(number) + name.removeprefix(prefix): t for name, t in of_layer.items()}
    remaining = config.under(mask)
    widths = tuple(max(1, width) for width in remaining.widths)
    return smaller, replace(remaining, intermediate_size=max(widths), widths=widths)


def _cut_heads(
    tensors: TensorDict, config: ModelConfig, layer: int, kept: tuple[int, ...], weights: Tensor
) -> None:
    """Keep only the heads `kept` of one layer, and fold in their weights, (heads,)."""
    prefix = f"{layer_prefix(layer)}attention."
    held = config.kept_heads[layer]
    keys_held = sorted(set(config.key_heads(held)))
    key_of_head = config.key_heads(kept)
    keys = sorted(set(key_of_head))
    rows = head_rows([held.index(head) for head in kept], config.head_size)
    key_rows = head_rows([keys_held.index(key) for key in keys], config.head_size)
    _keep_rows(tensors, config, f"{prefix}self.query", rows)
    _keep_rows(tensors, config, f"{prefix}self.key", key_rows)
    _keep_rows(tensors, config, f"{prefix}self.value", key_rows)
    output = tensors[f"{prefix}output.dense.weight"][:, rows]
    kept_weights = weights[list(kept)]
    if config.int8:  # integers cannot be scaled; the output of W^V is scaled instead
        weight_of_key = dict(zip(key_of_head, kept_weights.tolist(), strict=True))
        if [weight_of_key[key] for key in key_of_head] != kept_weights.tolist():
            raise ModelError(
                f"layer {layer}: heads that share values have different weights, which 8-bit weights cannot "
                "hold; prune the float checkpoint, then quantize it"
            )
        scales = torch.tensor([weight_of_key[key] for key in keys]).repeat_interleave(config.head_size)
        for part in ("bias", "weight_scale"):
            tensors[f"{prefix}self.value.{part}"] = tensors[f"{prefix}self.value.{part}"] * scales
    elif (kept_weights != 1).any():
        output = (output.float() * kept_weights.repeat_interleave(config.head_size)).to(output.dtype)
    tensors[f"{prefix}output.dense.weight"] = output


def _cut_units(tensors: TensorDict, config: ModelConfig, layer: int, kept: tuple[int, ...]) -> None:
    """Leave the units `kept` of one layer's tensors; one of weight 0 if there are none."""
    prefix = layer_prefix(layer)
    index = torch.tensor(kept or (0,), dtype=torch.int64)
    _keep_rows(tensors, config, f"{prefix}intermediate.dense", index)
    down = f"{prefix}output.dense."
    whole = tensors[f"{down}weight"]
    if config.gated:
        _keep_rows(tensors, config, f"{prefix}gate.dense", index)
    if config.int8 and config.gated:  # each unit has a midpoint, whose effect stands in the bias
        scale = tensors[f"{down}input_scale"]
        offset = tensors[f"{down}input_offset"]
        gone = torch.ones(len(scale), dtype=torch.bool)
        gone[list(kept)] = False
        effect = (whole[:, gone].float() @ (offset / scale)[gone]) * tensors[f"{down}weight_scale"]
        bias = tensors[f"{down}bias"]
        tensors[f"{down}bias"] = (bias.float() - effect).to(bias.dtype)
        tensors[f"{down}input_scale"] = scale[index]
        tensors[f"{down}input_offset"] = offset[index]
    smaller = whole[:, index]
    tensors[f"{down}weight"] = smaller if kept else torch.zeros_like(smaller)


def _keep_rows(tensors: TensorDict, config: ModelConfig, name: str, rows: Tensor) -> None:
    """Keep these rows, the outputs, of a map."""
    for part in ("weight", "bias", "weight_scale") if config.int8 else ("weight", "bias"):
        tensors[f"{name}.{part}"] = tensors[f"{name}.{part}"][rows]
