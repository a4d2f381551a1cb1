"""Evaluates many head masks on the same pairs; a run that was stopped can be resumed.

The work is cut into parts: a batch of pairs under a block of masks. The logits of each part go to a file as
soon as they are computed, so that the next run computes only the missing parts.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from models.batch import batches_by_length, pack
from models.checkpoint.files import digest_of
from models.classifier import Classifier
from models.files import write_whole
from models.quality.evaluation import Evaluation
from models.study.base import Judged, Matrix, Progress, Silent
from models.study.prefixes import logits_under

BATCH_TOKENS = 2048
BLOCK = 64
"""Masks in a part: enough that neighbours share layers, few enough that a stopped run loses only seconds."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some pairs under some masks: the unit that is computed and cached.

    pairs: the (query, title) of each; masks: (masks, layers, heads) float32.
    """

    pairs: tuple[tuple[str, str], ...]
    masks: NDArray[np.float32]


def logits_of_part(classifier: Classifier, part: Part) -> NDArray[np.float32]:
    """Return a part's logits (masks, pairs, grades) float32, least relevant grade first."""
    network, encoded = classifier.network, classifier.tokenizer.encode(part.pairs)
    batch = pack(encoded, device=network.device, deterministic=network.deterministic)
    logits = logits_under(network, batch, part.masks)
    ordered: NDArray[np.float32] = np.take(logits, classifier.config.label_order, axis=2)
    return ordered


@dataclass(eq=False)
class Runner:
    """Computes the logits of fixed pairs under any number of masks.

    cache: the directory of the parts; None keeps none. identity: names model, device and number format; a
    part that was computed under another identity is not used.
    """

    classifier: Classifier
    data: Judged
    cache: Path | None = None
    identity: str = ""
    progress: Progress = field(default_factory=Silent)

    def logits(self, masks: Sequence[Matrix], what: str = "masks") -> NDArray[np.float32]:
        """Return the logits under each mask (layers, heads): (masks, n, grades) float32, in the given order.

        what: the name of this work on the progress bar.
        """
        wanted = np.asarray(masks, np.float32)
        distinct, index_of = np.unique(wanted.reshape(len(wanted), -1), axis=0, return_inverse=True)
        distinct = distinct.reshape(-1, *wanted.shape[1:])  # sorted: neighbours share their first layers
        blocks = [slice(start, start + BLOCK) for start in range(0, len(distinct), BLOCK)]
        slots = [(rows, block) for rows in self._batches for block in blocks]
        parts = [Part(tuple(self.data.pairs[i] for i in rows), distinct[block]) for rows, block in slots]
        out = np.empty((len(distinct), len(self.data), len(self.classifier.config.labels)), np.float32)
        self.progress.start(what, sum(len(part.pairs) * len(part.masks) for part in parts))
        for number, logits in self._computed(parts):
            rows, block = slots[number]
            out[block, rows] = logits
            self.progress.advance(len(parts[number].pairs) * len(parts[number].masks))
        return out[index_of.ravel()]

    def evaluation(self, logits: NDArray[np.float32]) -> Evaluation:
        """Return the evaluation of one mask's logits (n, grades)."""
        scores, queries = self.classifier.scores(logits), [query for query, _ in self.data.pairs]
        return Evaluation(queries, self.data.grade.tolist(), scores.probabilities, ranking=scores.raw_score)

    def evaluate(self, masks: Sequence[Matrix], what: str = "masks") -> list[Evaluation]:
        """Return the evaluation under each mask. For thousands of masks, `logits` takes less memory."""
        return [self.evaluation(logits) for logits in self.logits(masks, what)]

    @cached_property
    def _batches(self) -> list[list[int]]:
        encoded = self.classifier.tokenizer.encode(self.data.pairs)
        return list(batches_by_length([len(pair) for pair in encoded], BATCH_TOKENS))

    def _computed(self, parts: Sequence[Part]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the logits of every part, the cached ones first."""
        files = [self._file(part) for part in parts]
        missing = []
        for number, file in enumerate(files):
            logits = _read(file, parts[number], len(self.classifier.config.labels))
            if logits is None:
                missing.append(number)
            else:
                yield number, logits
        for index, logits in self._computed_now([parts[number] for number in missing]):
            if (file := files[missing[index]]) is not None:
                np.save(buffer := io.BytesIO(), logits)
                write_whole(file, buffer.getvalue())
            yield missing[index], logits

    def _computed_now(self, parts: Sequence[Part]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield (index of the part, its logits), in any order.

        On a CPU, each core computes a part of its own: cores that share a part wait for each other at every
        matrix product.
        """
        cores = torch.get_num_threads()
        if len(parts) < 2 or cores < 2 or self.classifier.network.device.type != "cpu":
            for number, part in enumerate(parts):
                yield number, logits_of_part(self.classifier, part)
            return
        pool = ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,))
        try:
            numbers = {
                pool.submit(logits_of_part, self.classifier, part): number
                for number, part in enumerate(parts)
            }
            for done in as_completed(numbers):
                yield numbers[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # a part takes seconds: do not wait if stopped
            torch.set_num_threads(cores)  # the pool's threads changed the default for new threads

    def _file(self, part: Part) -> Path | None:
        if self.cache is None:
            return None
        digest = hashlib.sha256(self.identity.encode())
        for query, title in part.pairs:
            digest.update(f"\0{len(query)}:{query}{title}".encode())
        digest.update(repr(part.masks.shape).encode() + part.masks.tobytes())
        return self.cache / f"{digest.hexdigest()[:32]}.npy"


def _read(file: Path | None, part: Part, grades: int) -> NDArray[np.float32] | None:
    """Return a cached part, or None if there is none or it is damaged."""
    if file is None or not file.exists():
        return None
    try:
        logits: NDArray[np.float32] = np.load(file)
    except (OSError, ValueError, EOFError):
        return None
    return logits if logits.shape == (len(part.masks), len(part.pairs), grades) else None


def identity_of(directory: Path, classifier: Classifier) -> str:
    """Return a name for the numbers that a checkpoint gives here: a hash of its files, the kind of device and
    the number format."""
    network = classifier.network
    return f"1 {digest_of(directory)} {network.device.type} {network.dtype} {network.deterministic}"
