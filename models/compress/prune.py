"""Removes heads from a checkpoint: with a mask or tuned scales, it becomes a smaller one.

The result has the layout that transformers 4 writes after `prune_heads`: `pruned_heads` in config.json
and narrower projections, and keeps the head numbering of the unpruned model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from models.checkpoint.checks import check_empty
from models.checkpoint.config import ModelConfig, parse_config, read_config, read_raw, read_stored_masks
from models.errors import ModelError
from models.head_mask import HeadMask

if TYPE_CHECKING:  # errors are reported before torch is imported
    from torch import Tensor

LARGEST_SCALE = 100.0
"""Larger scales would leave the range of float16 checkpoints. Studies stay far below."""


def prune(
    source: Path, target: Path, weights: HeadMask | npt.NDArray[np.floating]
) -> tuple[ModelConfig, dict[str, str]]:
    """Write the checkpoint in `source` to the directory `target` without the heads of weight 0.

    weights: a mask, or scales (layers, heads), finite and ≥ 0, which may exceed 1. Weights other than 1 are
    folded into W^O, so the result without a mask scores as the source does with its heads weighted so.
    The source's stored masks are copied, with the removed heads off. A mask is dropped if it would switch off
    none, or all, of the remaining heads.
    Returns the new configuration, and for each dropped mask the reason.
    Raises ModelError if `target` is not empty, if the weights do not fit the checkpoint, or if they keep no
    head, because every pair would then get the same score.
    """
    config = read_config(source)
    matrix = weights.matrix if isinstance(weights, HeadMask) else _scales(weights)
    if matrix.shape != (config.num_layers, config.num_heads):
        raise ModelError(
            f"the {'mask is' if isinstance(weights, HeadMask) else 'scales are'} for {matrix.shape[0]} "
            f"layers of {matrix.shape[1]} heads; this checkpoint has {config.num_layers} of "
            f"{config.num_heads}"
        )
    if config.int8 and matrix.max() > 1:
        raise ModelError(
            f"{source} is quantized, and its 8 bits leave no room for scales above 1; prune the float "
            "checkpoint it was made from, then quantize the result"
        )
    check_empty(target)
    kept = tuple(
        tuple(head for head in heads if matrix[layer, head] > 0)
        for layer, heads in enumerate(config.kept_heads)
    )
    if not any(kept):
        raise ModelError(
            f"that would remove all {sum(map(len, config.kept_heads))} heads, and without any every pair "
            "gets the same score; keep at least one"
        )
    masks, dropped = _mapped(read_stored_masks(source, config), kept)

    from models.checkpoint.hub_files import copy_tokenizer
    from models.checkpoint.tensors import read_tensors, write_tensors

    tensors = read_tensors(source, config)
    for layer in range(config.num_layers):
        _prune_layer(tensors, config, layer, kept[layer], matrix[layer])
    raw = read_raw(source)
    raw["pruned_heads"] = _pruned_heads(kept, config.num_heads)
    target.mkdir(parents=True, exist_ok=True)
    write_tensors(target / "model.safetensors", tensors, config)
    (target / "config.json").write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    copy_tokenizer(source, target)
    for name, mask in masks.items():
        _write_mask(source / "masks" / f"{name}.json", target / "masks" / f"{name}.json", mask)
    assert parse_config(raw).kept_heads == kept
    return replace(config, kept_heads=kept), dropped


def _mapped(
    stored: Mapping[str, HeadMask], kept: tuple[tuple[int, ...], ...]
) -> tuple[dict[str, HeadMask], dict[str, str]]:
    """Return the stored masks for a checkpoint that holds only `kept`, and why others are dropped."""
    masks: dict[str, HeadMask] = {}
    dropped: dict[str, str] = {}
    for name, mask in stored.items():
        present = np.zeros_like(mask.matrix)
        for layer, heads in enumerate(kept):
            present[layer, list(heads)] = 1
        mapped = HeadMask(mask.matrix * present)
        if mapped.heads_on == 0:
            dropped[name] = "no head that it keeps is left"
        elif np.array_equal(mapped.matrix, present):
            dropped[name] = "it switches off nothing that is left"
        else:
            masks[name] = mapped
    return masks, dropped


def _write_mask(source: Path, target: Path, mask: HeadMask) -> None:
    """Write a mask and its origin, without the figures that were measured on the larger model."""
    original = json.loads(source.read_text(encoding="utf-8"))
    form = mask.to_json()
    content: dict[str, Any] = {"mask": mask.spec if "off" in form else form, "heads_on": mask.heads_on}
    if "found_by" in original:
        content["found_by"] = f"{original['found_by']}; mapped by headroom prune"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_scales(file: Path) -> npt.NDArray[np.float32]:
    """Return the scales (layers, heads) of a file that `headroom study search` wrote: {"scales": [[…], …]}.

    Raises ModelError, which names the file and says what is wrong with it.
    """
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["scales"]
        return _scales(np.array(rows, np.float64))
    except FileNotFoundError:
        raise ModelError(f"{file} does not exist") from None
    except (OSError, ValueError, KeyError, TypeError, ModelError) as error:
        reason = 'there is no "scales"' if isinstance(error, KeyError) else str(error)
        raise ModelError(f"{file} does not hold the scales of a study: {reason}") from None


def _scales(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    if values.ndim != 2 or values.size == 0:
        raise ModelError(f"the scales have shape {values.shape}; the valid shape is (layers, heads)")
    if not (np.isfinite(values) & (values >= 0) & (values <= LARGEST_SCALE)).all():
        raise ModelError(f"a scale is outside the valid range, finite numbers from 0 to {LARGEST_SCALE:g}")
    return values.astype(np.float32)


def _prune_layer(
    tensors: dict[str, Tensor],
    config: ModelConfig,
    layer: int,
    kept: tuple[int, ...],
    weights: npt.NDArray[np.float32],
) -> None:
    import torch

    from models.checkpoint.like_bert import layer_prefix
    from models.live_heads import head_rows

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
    elif (scales != 1).any():
        output = (output.float() * scales).to(output.dtype)
    tensors[f"{prefix}output.dense.weight"] = output


def _pruned_heads(kept: tuple[tuple[int, ...], ...], heads: int) -> dict[str, Any]:
    gone = {str(layer): [h for h in range(heads) if h not in present] for layer, present in enumerate(kept)}
    return {layer: numbers for layer, numbers in gone.items() if numbers}
