"""Our engine, and torch's GEMM rate. This is the only adapter that imports our code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.encoder import gemm_calls
from benchmarks.peers.batch import Batch, Engine
from benchmarks.workload import Shape
from models import Classifier
from models.checkpoint.tokenizer import EncodedPair

PACKAGES = ("torch",)
INT8 = "int8"
"""Suffix of the directory with the int8 checkpoint that `headroom quantize` made."""


def engines(directory: Path) -> dict[str, Engine]:
    """Return fp32, bf16 with and without masks, int8 if there is one, and the GEMMs of one layer."""
    bf16 = Classifier.load(directory, "cpu", "bfloat16", tokenizer_cache=0)
    result = {
        "ours fp32": engine(Classifier.load(directory, "cpu", "float32")),
        **variants("ours bf16", bf16),
        "ours bf16, from texts": from_texts(bf16),
    }
    if (quantized := directory.parent / INT8).exists():
        result |= variants("ours int8", Classifier.load(quantized, "cpu"))
    return result | gemms(bf16)


def variants(name: str, classifier: Classifier) -> dict[str, Engine]:
    """Return engines with all heads on, a random 20 % off in each row, and every second head off."""
    layers, heads = classifier.num_layers, classifier.num_heads
    random = (np.random.default_rng(0).random((1024, layers, heads)) >= 0.2).astype(np.float32)
    half = np.ones((layers, heads), np.float32)
    half[:, ::2] = 0
    return {
        name: engine(classifier),
        f"{name}, another random mask in every row": engine(classifier, random),
        f"{name}, every second head off": engine(classifier, half),
    }


def engine(classifier: Classifier, weights: np.ndarray | None = None) -> Engine:
    """Return an engine from token ids to logits, including packing. weights: of all rows, or one per row."""
    prepared: dict[int, list[EncodedPair]] = {}

    def call(batch: Batch) -> np.ndarray:
        pairs = prepared.setdefault(id(batch), encoded(batch) if id(batch) not in prepared else [])
        rows = weights[: len(pairs)] if weights is not None and weights.ndim == 3 else weights
        return classifier.forward(pairs, rows)

    return call


def from_texts(classifier: Classifier) -> Engine:
    """Return an engine from texts, like CrossEncoder.predict, without a cache of tokens."""
    return lambda batch: classifier.score(batch.texts, batch_tokens=1 << 20).logits


def encoded(batch: Batch) -> list[EncodedPair]:
    """Return the batch's rows without padding."""
    firsts = (batch.mask * (1 - batch.segments)).sum(axis=1)
    return [
        EncodedPair(ids[:length].astype(np.int32), int(first) - 2, unknown_tokens=0, truncated=False)
        for ids, length, first in zip(batch.ids, batch.lengths, firsts, strict=True)
    ]


def gemms(classifier: Classifier) -> dict[str, Engine]:
    """Return one layer's bfloat16 products of 1,600 rows, one per torch function; logits are their FLOPs."""
    config = classifier.config
    shape = Shape("", config.hidden_size, config.intermediate_size, config.vocab_size, family=config.family)
    calls, flops = gemm_calls(shape, torch.bfloat16)

    def engine_of(way: str) -> Engine:
        def call(_: Batch) -> np.ndarray:
            calls[way]()
            return np.array([[flops]])

        return call

    return {f"GEMM bf16 [{way}]": engine_of(way) for way in calls}
