"""What every training of the shipped model shares: the model to tune, its batches, averages, and files."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from default_model.base import MAX_TOKENS
from default_model.grouped_batches import GroupedBatch
from default_model.groups import Group
from headroom.models.checkpoint.shapes import POSITIONS
from headroom.models.checkpoint.tokenizer import PairTokenizer
from headroom.models.learner import Learner
from headroom.models.training.distil.teaching import WORDS
from headroom.models.training.job import GRADES
from headroom.models.training.tuning import start, write_learner

PAIRS_PER_ROUND = 2560

JUDGED_SHARES = {"esci": 0.40, "chorus": 0.27, "dbpedia": 0.15, "socrata": 0.18}
"""How often each judged source is drawn."""


def untuned(base: Path) -> Learner:
    """Return the base with a new classifier of the grades; its word embeddings take no part in training.

    So words of languages that are not trained on keep their meaning. There is no dropout: made-up pairs never
    repeat.
    """
    model = start(base, GRADES, seed=0)
    model.dropout = 0.0
    model.attention_dropout = 0.0
    model.weight(WORDS).requires_grad_(False)
    return model


def averaged(models: Sequence[Learner], shares: Sequence[float]) -> Learner:
    """Return the first model with the mean of all models' weights. shares: they sum to 1."""
    with torch.no_grad():
        for name, weight in models[0].named_parameters():
            parts = [share * model.get_parameter(name) for model, share in zip(models, shares, strict=True)]
            weight.copy_(torch.stack(parts).sum(0))
    return models[0]


def batches_of(
    groups: Sequence[Group], tokenizer: PairTokenizer, *, batch_tokens: int, seed: int
) -> list[GroupedBatch]:
    """Return the groups, each in one batch, as batches of similar length in a random order."""
    examples = [example for group in groups for example in group]
    whole = GroupedBatch(
        tokenizer.encode([(example.query, example.title) for example in examples]),
        torch.tensor([example.target for example in examples]),
        torch.tensor([example.weight for example in examples]),
        torch.tensor([number for number, group in enumerate(groups) for _ in group]),
        torch.tensor([example.taught for example in examples]),
    )
    rows = count()
    spans = [[next(rows) for _ in group] for group in groups]
    return whole.split(spans, batch_tokens=batch_tokens, rng=np.random.default_rng(seed))


def write(model: Learner, base: Path, out: Path, metrics: dict[str, Any]) -> None:
    """Write config.json, model.safetensors (float16), the tokenizer's files and metrics.json.

    Positions that no training text reached are left out: they would grade longer texts at random.
    """
    model = model.half()
    positions = model.weight(POSITIONS)
    positions.data = positions.data[:MAX_TOKENS].clone()
    model.config = replace(model.config, max_positions=MAX_TOKENS)
    write_learner(out, model, base, max_position_embeddings=MAX_TOKENS, dtype="float16")
    (out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
