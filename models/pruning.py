"""Physically removes heads: a checkpoint and a mask become a smaller checkpoint.

The result has the layout that transformers 4 writes after `prune_heads`: `pruned_heads` in config.json
and narrower projections, and keeps the head numbering of the unpruned model.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from models.checkpoint import TOKENIZER_FILES, layer_prefix, read_tensors
from models.config import ModelConfig, parse_config, read_config
from models.errors import ModelError
from models.head_mask import HeadMask
from models.live_heads import head_rows


def prune(source: Path, target: Path, mask: HeadMask) -> ModelConfig:
    """Writes the checkpoint in `source` to the directory `target` without the heads that `mask` puts off.

    Weights between 0 and 1 are folded into W^O, so that the result under no mask scores as the source
    does under `mask`. Returns the new configuration.
    Raises ModelError where `target` already holds something or the mask has another shape.
    """
    config = read_config(source)
    if (mask.layers, mask.heads) != (config.num_layers, config.num_heads):
        raise ModelError(
            f"the mask is for {mask.layers} layers of {mask.heads} heads; "
            f"this checkpoint has {config.num_layers} of {config.num_heads}"
        )
    if target.exists() and any(target.iterdir()):
        raise ModelError(f"{target} is not empty; name a new directory")
    kept = tuple(
        tuple(head for head in heads if mask.matrix[layer, head] > 0)
        for layer, heads in enumerate(config.kept_heads)
    )
    tensors = read_tensors(source, config)
    for layer in range(config.num_layers):
        _prune_layer(tensors, config, layer, kept[layer], mask)
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


def _prune_layer(
    tensors: dict[str, Tensor], config: ModelConfig, layer: int, kept: tuple[int, ...], mask: HeadMask
) -> None:
    prefix = f"{layer_prefix(layer)}attention."
    held = config.kept_heads[layer]
    rows = head_rows([held.index(head) for head in kept], config.head_size)
    for name in ("query", "key", "value"):
        for part in ("weight", "bias"):
            tensors[f"{prefix}self.{name}.{part}"] = tensors[f"{prefix}self.{name}.{part}"][rows]
    output = tensors[f"{prefix}output.dense.weight"][:, rows]
    scales = torch.from_numpy(mask.matrix[layer, list(kept)]).repeat_interleave(config.head_size)
    if (scales != 1).any():
        output = (output.float() * scales).to(output.dtype)
    tensors[f"{prefix}output.dense.weight"] = output


def _pruned_heads(kept: tuple[tuple[int, ...], ...], heads: int) -> dict[str, Any]:
    gone = {str(layer): [h for h in range(heads) if h not in present] for layer, present in enumerate(kept)}
    return {layer: numbers for layer, numbers in gone.items() if numbers}
