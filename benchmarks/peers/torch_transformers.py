"""transformers' own classifier in PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from benchmarks.peers.batch import Batch, Engine, Engines, inputs_of

PACKAGES = ("transformers", "torch")


def engines(directory: Path) -> Engines:
    """Return engines in float32 and bfloat16, each with both attention implementations."""
    return {
        f"transformers {name} [{attention}]": engine(directory, dtype, attention)
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))
        for attention in ("sdpa", "eager")
    }


def serving(directory: Path, name: str) -> Engine:
    """Return the fp32 or bf16 engine for a server."""
    return engine(directory, torch.bfloat16 if name == "bf16" else torch.float32, "sdpa")


def engine(directory: Path, dtype: torch.dtype, attention: str) -> Engine:
    """Return an engine of the model in this number format."""
    model = AutoModelForSequenceClassification.from_pretrained(
        directory, dtype=dtype, attn_implementation=attention
    ).eval()

    names = inputs_of(model)

    def call(batch: Batch) -> np.ndarray:
        with torch.inference_mode():
            inputs = {name: torch.from_numpy(batch.inputs[name]) for name in names}
            return model(**inputs).logits.float().numpy()

    return call
