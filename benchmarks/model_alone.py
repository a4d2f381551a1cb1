"""A model that scores requests without a server, in batches as the server makes them."""

import itertools
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from models.batch import batches_by_length
from models.checkpoint.hub import DEFAULT
from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier
from models.cores import cores

BATCH_TOKENS = 1024
"""The server's budget on a CPU."""


class ModelAlone:
    """Runs like the server: several batches at once with one core each, or a single pair on all cores.

    Texts are tokenized in advance.
    """

    def __init__(self, texts: Sequence[tuple[str, str]], model: Path = DEFAULT) -> None:
        self.cores = cores()
        self._threads = torch.get_num_threads()
        torch.set_num_threads(self.cores)
        self._classifier = Classifier.load(model)
        pairs = self._classifier.tokenizer.encode(texts)
        self._one = pairs[:1]
        cut = batches_by_length([len(pair) for pair in pairs], BATCH_TOKENS)
        self._batches = [[pairs[row] for row in rows] for rows in cut]
        self._pool = ThreadPoolExecutor(self.cores, initializer=torch.set_num_threads, initargs=(1,))
        self.pairs_per_second(0.5)

    def close(self) -> None:
        """Restore the process's number of threads."""
        self._pool.shutdown()
        torch.set_num_threads(self._threads)

    def pairs_per_second(self, seconds: float) -> float:
        """Return the pairs per second of as many batches as fit the time."""
        began = time.perf_counter()
        batches = itertools.cycle(self._batches)

        def work(_: int) -> int:
            done = 0
            while time.perf_counter() - began < seconds:
                batch = next(batches)
                self._score(batch)
                done += len(batch)
            return done

        done = sum(self._pool.map(work, range(self.cores)))
        return done / (time.perf_counter() - began)

    def one_pair_ms(self, times: int = 50) -> float:
        """Return the median time of a forward pass of one pair."""
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            self._score(self._one)
            taken.append(time.perf_counter() - began)
            time.sleep(0.02)  # like the pause between two requests, in which the processor cools down
        return statistics.median(taken) * 1000

    def _score(self, pairs: list[EncodedPair]) -> None:
        self._classifier.scores(self._classifier.forward(pairs))
