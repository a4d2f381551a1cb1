"""CTranslate2's encoder on the CPU; numpy computes the classifier's small product."""

from __future__ import annotations

from pathlib import Path

import ctranslate2
import numpy as np

from benchmarks.peers.batch import Batch, Engine, Engines, threads_of_worker

PACKAGES = ("ctranslate2",)


def engines(directory: Path) -> Engines:
    """Return an engine with int8 weights and activations quantised on the fly."""
    return {"CTranslate2 int8": serving(directory, "int8")}


def serving(directory: Path, name: str) -> Engine:
    """Return an engine: the encoder with its pooler, in this number format, and the classifier."""
    encoder = ctranslate2.Encoder(
        str(directory / "ctranslate2"), "cpu", compute_type=name, intra_threads=threads_of_worker()
    )
    head = np.load(directory / "classifier.npz")
    weight, bias = head["weight"], head["bias"]

    def call(batch: Batch) -> np.ndarray:
        output = encoder.forward_batch(
            ctranslate2.StorageView.from_array(batch.input_ids.astype(np.int32)),
            ctranslate2.StorageView.from_array(batch.lengths.astype(np.int32)),
            token_type_ids=batch.token_type_ids.tolist(),
        )
        return np.asarray(np.array(output.pooler_output) @ weight.T + bias, np.float32)

    return call
