"""Evaluates a model on judged pairs while it is trained: logits, metrics by source, a temperature."""

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from models.device import autocast
from models.quality.evaluation import Evaluation
from models.training.batches import fitted, grouped, padded, tokenized
from models.training.data import GRADES, Judged, source_family, source_groups
from models.training.network import Model

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def logits_of(
    model: Model,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    *,
    batch_tokens: int = 8192,
    bf16: bool = True,
) -> Floats:
    """Return the model's logits, (pairs, grades) float64, in the pairs' order. bf16: if the device has it."""
    device = next(model.parameters()).device
    max_tokens = model.config.max_position_embeddings
    queries = tokenized(tokenizer, [query for query, _ in pairs])
    titles = tokenized(tokenizer, [title for _, title in pairs])
    sequences = [fitted(query, title, max_tokens) for query, title in zip(queries, titles, strict=True)]
    result = np.zeros((len(pairs), len(GRADES)))
    was_training = model.training
    model.eval()
    with torch.no_grad(), autocast(device) if bf16 else nullcontext():
        for places in grouped(
            [len(query) + len(title) + 3 for query, title in sequences], batch_tokens=batch_tokens
        ):
            ids, segments, mask = (part.to(device) for part in padded([sequences[place] for place in places]))
            output = model(input_ids=ids, token_type_ids=segments, attention_mask=mask)
            result[places] = output.logits.double().numpy(force=True)
    model.train(was_training)
    return result


def probabilities_of(logits: Floats, temperature: float) -> Floats:
    """Return softmax(logits / temperature), row by row."""
    scaled = logits / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def measured(judged: Sequence[Judged], probabilities: Floats) -> dict[str, float]:
    """Return an evaluation's metrics, how many pairs and queries there are, and a random order's NDCG."""
    evaluation = Evaluation([row.query for row in judged], [row.grade for row in judged], probabilities)
    return {
        "pairs": len(judged),
        "queries": evaluation.queries,
        **evaluation.metrics(),
        "ndcg10_random_order": evaluation.random_order_ndcg10(),
    }


def by_family(judged: Sequence[Judged], probabilities: Floats) -> dict[str, dict[str, float]]:
    """Return the metrics of each source family, of "products" (ESCI and Chorus) and of "all"."""
    return {
        name: measured([judged[place] for place in places], probabilities[places])
        for name, places in source_groups(judged).items()
    }


def calibrated_temperature(judged: Sequence[Judged], logits: Floats) -> float:
    """Return the temperature that fits the judged rows best. Each source family has the same weight."""
    families = [source_family(row.source) for row in judged]
    counts = Counter(families)
    weights = np.array([1 / counts[family] for family in families])
    return fitted_temperature(np.array([row.grade for row in judged]), logits, weights)


def crossed(judged: Sequence[Judged], *, count: int = 1000, seed: int = 0) -> list[Judged]:
    """Return queries with titles judged for other queries of their source family, all irrelevant (0).

    Calibration needs them: judged pairs were retrieved for their query, so few of them are far from it. Fewer
    than `count` come back if too few queries differ.
    """
    rng = random.Random(seed)
    drawn = [(rng.choice(judged), rng.choice(judged)) for _ in range(4 * count)]
    pairs = [
        Judged(one.query, other.title, 0, "crossed", one.fold)
        for one, other in drawn
        if one.query != other.query and source_family(one.source) == source_family(other.source)
    ]
    return pairs[:count]


def fitted_temperature(truth: Ints, logits: Floats, weights: Floats) -> float:
    """Return the temperature from 0.2 to 5 with the least negative log-likelihood.

    It is found by golden-section search on its logarithm.
    """

    def loss(log_temperature: float) -> float:
        probabilities = probabilities_of(logits, float(np.exp(log_temperature)))
        return float(-np.log(probabilities[np.arange(len(truth)), truth] + 1e-12) @ weights)

    low, high, ratio = np.log(0.2), np.log(5.0), (np.sqrt(5) - 1) / 2
    while high - low > 1e-4:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if loss(left) < loss(right):
            high = right
        else:
            low = left
    return float(np.exp((low + high) / 2))
