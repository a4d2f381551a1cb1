"""Removes what a mask switches off from a checkpoint: heads, feed-forward units and layers.

Without heads, the result has the layout that transformers 4 writes after `prune_heads`: `pruned_heads` in
config.json and narrower projections; heads keep the numbering of the unpruned model. The layers that stay are
numbered from 0, and `num_hidden_layers` is their number. If all layers have equally many units,
`intermediate_size` says how many; else it is the largest number, and `headroom.intermediate_sizes` says each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.checkpoint.config import ModelConfig, parse_config, read_config, read_raw
from models.checkpoint.families import FAMILIES
from models.checkpoint.files import check_empty
from models.compress.structure import check
from models.masks.head_mask import HeadMask

if TYPE_CHECKING:  # errors are reported before torch is imported
    from torch import Tensor


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
    check(mask, config)
    from models.checkpoint.tensors import read_tensors
    from models.compress.cutting import cut

    tensors, smaller = cut(read_tensors(source, config), config, mask)
    return write_checkpoint(source, target, tensors, smaller)


def write_checkpoint(
    source: Path, target: Path, tensors: Mapping[str, Tensor], config: ModelConfig, **fields: Any
) -> ModelConfig:
    """Write another network than that of `source` to `target`, with the source's tokenizer.

    fields: what config.json says beside the shape, if it differs from the source's. Returns what it says.
    """
    from models.checkpoint.files import copy_tokenizer
    from models.checkpoint.tensors import write_tensors

    raw = _described(read_raw(source) | fields, config)
    parsed = parse_config(raw)
    assert (parsed.num_layers, parsed.kept_heads, parsed.widths) == (
        config.num_layers,
        config.kept_heads,
        config.widths,
    )
    target.mkdir(parents=True, exist_ok=True)
    write_tensors(target / "model.safetensors", tensors, parsed)
    (target / "config.json").write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    copy_tokenizer(source, target)
    return parsed


def _described(raw: dict[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Return config.json of a smaller checkpoint, from that of its source."""
    raw = raw | FAMILIES[config.family].fields_of(config)
    raw["pruned_heads"] = _pruned_heads(config.kept_heads, config.num_heads)
    ours = {key: value for key, value in (raw.get("headroom") or {}).items() if key != "intermediate_sizes"}
    if len(set(config.widths)) > 1:
        ours["intermediate_sizes"] = list(config.widths)
    if ours:
        raw["headroom"] = ours
    return raw


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


def _pruned_heads(kept: tuple[tuple[int, ...], ...], heads: int) -> dict[str, Any]:
    gone = {str(layer): [h for h in range(heads) if h not in present] for layer, present in enumerate(kept)}
    return {layer: numbers for layer, numbers in gone.items() if numbers}
