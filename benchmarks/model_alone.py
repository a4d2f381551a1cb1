"""A model that scores requests without a server, in batches as the server makes them."""

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, cycle, groupby
from pathlib import Path

import torch

from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.cores import cores

BATCH_TOKENS = 1024
"""The server's budget on a CPU."""
TIMES = 20
"""How often one pair is measured."""
IDLE_S = 0.1
"""Between two requests to an idle server. Meanwhile threads fall asleep, and caches lose the weights."""


class ModelAlone:
    """Runs like the server: batches side by side with one core each, or a single pair."""

    def __init__(self, texts: Sequence[tuple[str, str]], model: Path = DEFAULT) -> None:
        self.cores = cores()
        self._threads = torch.get_num_threads()
        torch.set_num_threads(self.cores)
        self._classifier = Classifier.load(model)
        pairs = self._classifier.tokenizer.encode(texts)
        self._one = [sorted(pairs, key=len)[len(pairs) // 2]]
        self._pairs_per_token = len(pairs) / sum(map(len, pairs))
        # In their order, so that any part of them has all lengths: a measurement may not reach the last.
        ends = zip(accumulate(map(len, pairs)), pairs, strict=True)
        groups = groupby(ends, lambda end: end[0] // BATCH_TOKENS)
        self._batches = cycle([[pair for _, pair in group] for _, group in groups])
        self._pool = ThreadPoolExecutor(self.cores, initializer=torch.set_num_threads, initargs=(1,))
        self.pairs_per_second(0.5)

    def close(self) -> None:
        """Restore the process's number of threads."""
        self._pool.shutdown()
        torch.set_num_threads(self._threads)

    def pairs_per_second(self, seconds: float) -> float:
        """Return the pairs of mean length per second, of as many batches as fit the time."""
        began = time.perf_counter()

        def work(_: int) -> int:
            tokens = 0
            while time.perf_counter() - began < seconds:
                batch = next(self._batches)
                self._score(batch)
                tokens += sum(map(len, batch))
            return tokens

        tokens = sum(self._pool.map(work, range(self.cores)))
        return tokens * self._pairs_per_token / (time.perf_counter() - began)

    def one_pair_ms(self) -> float:
        """Return the median time of one pair of median length on an idle machine."""
        return idle_ms(lambda: self._score(self._one))

    def _score(self, pairs: list[EncodedPair]) -> None:
        self._classifier.scores(self._classifier.forward(pairs))


def idle_ms(call: Callable[[], object]) -> float:
    """Return the median time of a call now and then, on one core or all, whichever is faster."""
    before = torch.get_num_threads()
    medians = []
    for threads in {1, cores()}:
        torch.set_num_threads(threads)
        taken = []
        for _ in range(TIMES):
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
            time.sleep(IDLE_S)
        medians.append(statistics.median(taken))
    torch.set_num_threads(before)
    return min(medians) * 1000
