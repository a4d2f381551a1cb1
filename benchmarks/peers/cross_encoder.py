"""CrossEncoder.predict of sentence-transformers, from texts, so that its time includes tokenization."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sentence_transformers import CrossEncoder

from benchmarks.peers.batch import Batch, Engines

PACKAGES = ("sentence-transformers", "transformers", "torch")


def engines(directory: Path) -> Engines:
    """Return the engine in bfloat16, its fastest format."""
    model = CrossEncoder(str(directory), device="cpu", max_length=128, model_kwargs={"dtype": torch.bfloat16})

    def call(batch: Batch) -> np.ndarray:
        logits: torch.Tensor = model.predict(
            list(batch.texts),
            batch_size=len(batch.texts),
            show_progress_bar=False,
            activation_fn=torch.nn.Identity(),
            convert_to_tensor=True,
        )
        return logits.float().numpy()

    return {"CrossEncoder bf16, from texts": call}
