"""Physically removes heads: a checkpoint and a mask, or tuned scales, become a smaller checkpoint.

The result has the layout that transformers 4 writes after `prune_heads`: `pruned_heads` in config.json
and narrower projections, and keeps the head numbering of the unpruned model.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from torch import Tensor

from models.checkpoint import TOKENIZER_FILES, layer_prefix, read_tensors
from models.config import ModelConfig, parse_config, read_config
from models.errors import ModelError
from models.head_mask import HeadMask
from models.live_heads import head_rows

LARGEST_SCALE = 100.0
"""Scales above it would leave the range of float16 checkpoints; studies stay far below."""


def prune(source: Path, target: Path, weights: HeadMask | npt.NDArray[np.floating]) -> ModelConfig:
    """Writes the checkpoint in `source` to the directory `target` without the heads of weight 0.

    weights: a mask, or scales (layers, heads), finite and ≥ 0, which may exceed 1. Weights other than 1 are
    folded into W^O, so that the result under no mask scores as the source does with its heads so weighted.
    Returns the new configuration.
    Raises ModelError where `target` already holds something or the weights do not fit the checkpoint.
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
    if target.exists() and any(target.iterdir()):
        raise ModelError(f"{target} is not empty; name a new directory")
    kept = tuple(
        tuple(head for head in heads if matrix[layer, head] > 0)
        for layer, heads in enumerate(config.kept_heads)
    )
    tensors = read_tensors(source, config)
    for layer in range(config.num_layers):
        _prune_layer(tensors, config, layer, kept[layer], matrix[layer])
    raw = json.loads((source / "config.json").read_text(encoding="utf-8"))
    raw["pruned_heads"] = _pruned_heads(kept, config.num_heads)
    target.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: t.contiguous() for name, t in tensors.items()}, target / "model.safetensors", {"format": "pt"}
    )
    (target / "config.json").write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    assert parse_config(raw).kept_heads == kept
    return replace(config, kept_heads=kept)


def read_scales(file: Path) -> npt.NDArray[np.float32]:
    """The scales (layers, heads) of a file that `headroom study search` wrote: {"scales": [[…], …]}.

    Raises ModelError naming the file and what is wrong with it.
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
    prefix = f"{layer_prefix(layer)}attention."
    held = config.kept_heads[layer]
    rows = head_rows([held.index(head) for head in kept], config.head_size)
    for name in ("query", "key", "value"):
        for part in ("weight", "bias", "weight_scale") if config.int8 else ("weight", "bias"):
            tensors[f"{prefix}self.{name}.{part}"] = tensors[f"{prefix}self.{name}.{part}"][rows]
    output = tensors[f"{prefix}output.dense.weight"][:, rows]
    scales = torch.from_numpy(weights[list(kept)]).repeat_interleave(config.head_size)
    if config.int8:  # integers cannot be scaled, but what W^V puts out is scaled when it leaves them
        for part in ("bias", "weight_scale"):
            tensors[f"{prefix}self.value.{part}"] = tensors[f"{prefix}self.value.{part}"] * scales
    elif (scales != 1).any():
        output = (output.float() * scales).to(output.dtype)
    tensors[f"{prefix}output.dense.weight"] = output


def _pruned_heads(kept: tuple[tuple[int, ...], ...], heads: int) -> dict[str, Any]:
    gone = {str(layer): [h for h in range(heads) if h not in present] for layer, present in enumerate(kept)}
    return {layer: numbers for layer, numbers in gone.items() if numbers}
