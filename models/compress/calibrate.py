"""Writes a checkpoint with another calibration of its probabilities.

Several labels: temperature and biases are folded into the last map, in float32, so that every program that
loads the checkpoint has the same probabilities. One label, and a decoder, whose last map has no bias: they
stand in config.json, as `headroom.temperature` and `headroom.bias`. Other programs do not read these; but the
logits stay the same bits, and with them the order of all titles.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from headroom.models.checkpoint.config import ModelConfig, read_config, read_raw
from headroom.models.checkpoint.files import check_empty
from headroom.models.checkpoint.tensors import TensorDict, read_tensors
from headroom.models.compress.prune import write_checkpoint
from headroom.models.files import Json

SIGMOID = "torch.nn.modules.activation.Sigmoid"


def write_calibrated(
    source: Path,
    target: Path,
    temperature: float,
    bias: Sequence[float],
    config: ModelConfig | None = None,
) -> ModelConfig:
    """Write the checkpoint in `source` to the directory `target` with calibrated probabilities.

    temperature, bias: the calibrated logits are logits / temperature + bias; they replace the source's. bias:
    one per label, least relevant first. A one-label model's score becomes its probability, if it was its
    logit. Stored masks are copied. config: of the source, if its
    labels are in another order than config.json says. Returns the new configuration.
    Raises ModelError if `target` is not empty.
    """
    config = config or read_config(source)
    check_empty(target)
    raw = read_raw(source)
    tensors = dict(read_tensors(source, config))
    ours = {name: one for name, one in (raw.get("headroom") or {}).items() if name not in _FIELDS}
    fields: Json = {}
    by_id = [bias[config.label_order.index(label)] for label in range(len(config.labels))]
    if config.is_graded and config.decoder is None:
        fold(tensors, temperature, by_id)
    else:
        ours |= {"temperature": temperature, "bias": by_id}
    if not config.is_graded:
        config = replace(config, score_activation="sigmoid")
        fields["sentence_transformers"] = {
            **(raw.get("sentence_transformers") or {}),
            "activation_fn": SIGMOID,
        }
        fields["sbert_ce_default_activation_function"] = None
    written = write_checkpoint(source, target, tensors, config, headroom=ours, **fields)
    if (source / "masks").is_dir():
        shutil.copytree(source / "masks", target / "masks")
    return written


_FIELDS = ("temperature", "bias")


def fold(tensors: TensorDict, temperature: float, bias: Sequence[float]) -> None:
    """Fold a calibration into the tensors of the last map, which become float32. bias: by label id."""
    for part in ("classifier.weight", "classifier.bias"):
        tensors[part] = (tensors[part].double() / temperature).float()
    tensors["classifier.bias"] += torch.tensor(bias)
