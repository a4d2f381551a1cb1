"""Our engine, and torch's GEMM rate. This is the only adapter that imports our code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.peers.batch import Batch, Engine
from benchmarks.products import float_products
from benchmarks.workload import Shape
from models import Classifier
from models.checkpoint.tokenizer import EncodedPair

PACKAGES = ("torch",)
INT8 = "int8"
"""Name of the directory with the int8 checkpoint, which stands beside the exported one."""


def engines(directory: Path) -> dict[str, Engine]:
    """Return fp32, bf16, int8 if there is one, and the GEMMs of one layer."""
    bf16 = Classifier.load(directory, "cpu", "bfloat16")
    result = {"ours fp32": engine(Classifier.load(directory, "cpu", "float32")), "ours bf16": engine(bf16)}
    if (quantized := directory.parent / INT8).exists():
        result["ours int8"] = engine(Classifier.load(quantized, "cpu"))
    return result | gemms(bf16)


def engine(classifier: Classifier) -> Engine:
    """Return an engine from token ids to logits, including packing."""
    prepared: dict[int, list[EncodedPair]] = {}

    def call(batch: Batch) -> np.ndarray:
        if id(batch) not in prepared:
            prepared[id(batch)] = encoded(batch)
        return classifier.forward(prepared[id(batch)])

    return call


def encoded(batch: Batch) -> list[EncodedPair]:
    """Return the batch's rows without padding."""
    firsts = (batch.mask * (1 - batch.segments)).sum(axis=1)
    return [
        EncodedPair(ids[:length].astype(np.int32), int(first) - 2, unknown_tokens=0, truncated=False)
        for ids, length, first in zip(batch.ids, batch.lengths, firsts, strict=True)
    ]


def gemms(classifier: Classifier) -> dict[str, Engine]:
    """Return one layer's bfloat16 products, one for each of torch's functions; logits are their FLOPs."""
    config = classifier.config
    shape = Shape("", config.hidden_size, config.intermediate_size, config.vocab_size)
    calls, flops = float_products(shape, torch.bfloat16)

    def engine_of(way: str) -> Engine:
        def call(_: Batch) -> np.ndarray:
            calls[way]()
            return np.array([[flops]])

        return call

    return {way: engine_of(way) for way in calls}
