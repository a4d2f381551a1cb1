"""transformers' own classifier in PyTorch."""

from __future__ import annotations

import timeit
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from benchmarks.peers.batch import Batch, Engine, Engines, padded

PACKAGES = ("transformers", "torch")
ROWS, TITLE_TOKENS = 64, 25
"""The batch for which a server chooses its attention: full, of titles of the mean length."""


def engines(directory: Path) -> Engines:
    """Return engines in float32 and, if oneDNN can, bfloat16, each with both attention implementations."""
    formats = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        del formats["bf16"]  # without oneDNN, it is many times slower than float32
    return {
        f"transformers {name} [{attention}]": engine(directory, dtype, attention)
        for name, dtype in formats.items()
        for attention in ("sdpa", "eager")
    }


def serving(directory: Path, name: str) -> Engine:
    """Return the fp32 or bf16 engine for a server, with the attention that is faster on a full batch."""
    dtype = torch.bfloat16 if name == "bf16" else torch.float32
    ids = np.arange(TITLE_TOKENS) + 1000
    batch = padded([(ids, TITLE_TOKENS // 4)] * ROWS)
    both = [engine(directory, dtype, attention) for attention in ("sdpa", "eager")]
    return min(both, key=lambda call: min(timeit.repeat(lambda: call(batch), number=1, repeat=4)))


def engine(directory: Path, dtype: torch.dtype, attention: str) -> Engine:
    """Return an engine of the model in this number format."""
    model = AutoModelForSequenceClassification.from_pretrained(
        directory, dtype=dtype, attn_implementation=attention
    ).eval()

    def call(batch: Batch) -> np.ndarray:
        with torch.inference_mode():
            inputs = {name: torch.from_numpy(array) for name, array in batch._asdict().items()}
            logits: torch.Tensor = model(**inputs).logits
            return logits.float().numpy()

    return call
