"""CTranslate2's encoder on the CPU; numpy computes the classifier's small product."""

from __future__ import annotations

from pathlib import Path

import ctranslate2
import numpy as np

from benchmarks.peers.batch import Batch, Engine, Engines, threads_of_worker

PACKAGES = ("ctranslate2",)


def engines(directory: Path) -> Engines:
    """Return an engine with int8 weights and activations quantised on the fly."""
    return {"CTranslate2 int8": engine(directory, "int8")}


def serving(directory: Path, name: str) -> Engine:
    """Return the int8 engine for a server."""
    return engine(directory, name, threads_of_worker())


def engine(directory: Path, compute_type: str, threads: int = 2) -> Engine:
    """Return an engine: the encoder with its pooler, and the classifier."""
    encoder = ctranslate2.Encoder(
        str(directory / "ctranslate2"), device="cpu", compute_type=compute_type, intra_threads=threads
    )
    head = np.load(directory / "classifier.npz")
    weight, bias = head["weight"], head["bias"]

    def call(batch: Batch) -> np.ndarray:
        output = encoder.forward_batch(
            ctranslate2.StorageView.from_array(batch.ids.astype(np.int32)),
            ctranslate2.StorageView.from_array(batch.lengths.astype(np.int32)),
            token_type_ids=batch.segments.tolist(),
        )
        return np.asarray(np.array(output.pooler_output) @ weight.T + bias, np.float32)

    return call
