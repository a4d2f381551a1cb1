"""Scores a batch of requests for the peer servers: tokenize, sort, score in batches of 64."""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.peers.batch import padded

BATCH = 64
WINDOW = 128
MAX_REQUESTS = 8
"""Requests that a server may batch; with 20 titles each, its batches are full."""

WAIT_S = 0.005
"""How long a request may wait for others; under saturation, none waits."""

TIMEOUT_S = 120

THREADS = 2
"""Threads of all workers together, as for every engine."""


def arguments() -> argparse.Namespace:
    """Parse the arguments, and set them as variables for servers that start processes without them.

    --engine is a module of benchmarks.peers, --model an exported checkpoint, and --workers the number of
    processes that share THREADS.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, choices=range(1, THREADS + 1), default=1)
    options = parser.parse_args()
    os.environ["BENCH_ENGINE"], os.environ["BENCH_MODEL"] = options.engine, options.model
    os.environ["OMP_NUM_THREADS"] = str(THREADS // options.workers)
    return options


class Scorer:
    """A tokenizer and an engine, as the variables say: the engine's module, a colon and the number format."""

    def __init__(self) -> None:
        module, _, name = os.environ["BENCH_ENGINE"].partition(":")
        directory = Path(os.environ["BENCH_MODEL"])
        self._engine = importlib.import_module(f"benchmarks.peers.{module}").serving(directory, name)
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(WINDOW)

    def __call__(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return {"results": [{"index", "score"}]} for each {"query", "titles"}."""
        pairs = [(request["query"], title) for request in requests for title in request["titles"]]
        encoded = self._tokenizer.encode_batch(pairs)
        order = sorted(range(len(pairs)), key=lambda row: len(encoded[row].ids))
        scores = np.empty(len(pairs), np.float32)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            tokens = [np.array(encoded[row].ids) for row in rows]
            firsts = [encoded[row].type_ids.count(0) for row in rows]
            scores[rows] = expected_grade(self._engine(padded(list(zip(tokens, firsts, strict=True)))))
        ends = np.cumsum([len(request["titles"]) for request in requests])[:-1]
        return [
            {"results": [{"index": index, "score": score} for index, score in enumerate(own.tolist())]}
            for own in np.split(scores, ends)
        ]


def expected_grade(logits: np.ndarray) -> np.ndarray:
    """Return the softmax's mean grade: (rows, grades) → (rows,)."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    grades: np.ndarray = (weights / weights.sum(axis=1, keepdims=True)) @ np.arange(logits.shape[1])
    return grades
