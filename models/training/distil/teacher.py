"""The teacher's answers to pairs, computed once and kept on disk."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from headroom.models.batch import batches_by_length, pack
from headroom.models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from headroom.models.classifier import Classifier
from headroom.models.errors import ModelError
from headroom.models.files import write_whole
from headroom.models.training.distil.pairs import Pair

PART = 256
"""Pairs that are answered at a time: a run that is stopped loses no more of the teacher's work."""

BATCH_TOKENS = 4096


@dataclass(eq=False)
class Teacher:
    """A model that teaches.

    tokenizer: the model's, within the window of the run. states: answer with what the classifier reads, too.
    """

    clf: Classifier
    tokenizer: PairTokenizer
    states: bool

    @cached_property
    def answer_type(self) -> np.dtype[np.void]:
        """Return the type of an answer: logits, (labels,), least relevant first, and the state, (D,)."""
        config = self.clf.config
        width = config.hidden_size if self.states else 0
        return np.dtype([("logits", "<f4", (len(config.labels),)), ("state", "<f2", (width,))])

    def answers(self, pairs: Sequence[Pair]) -> np.ndarray:
        """Return the answer to each pair, (n,) of `answer_type`.

        Raises ModelError if one is not finite.
        """
        encoded = self.tokenizer.encode([(pair.query, pair.title) for pair in pairs])
        answers = np.zeros(len(pairs), self.answer_type)
        if not self.states:
            answers["logits"] = self.clf.logits(encoded, None, BATCH_TOKENS)
        else:
            for rows in batches_by_length([len(pair) for pair in encoded], BATCH_TOKENS):
                answers[rows] = self._with_states([encoded[row] for row in rows])
        for part, name in (("logits", "logits"), ("state", "last hidden state")):
            finite = np.isfinite(answers[part]).all(1)
            if not finite.all():
                title = pairs[int(np.argmin(finite))].title
                raise ModelError(
                    f"the teacher's {name} of the title {title!r} holds numbers that are not finite"
                )
        return answers

    def _with_states(self, pairs: Sequence[EncodedPair]) -> np.ndarray:
        network = self.clf.network
        batch = pack(pairs, device=network.device)
        answers = np.zeros(len(pairs), self.answer_type)
        with torch.inference_mode():
            states = network.pooled(batch, network.selector.select(None))
            logits = network.classify(states)[batch.answers]
            answers["logits"] = logits.numpy(force=True)[:, list(self.clf.config.label_order)]
            with np.errstate(over="ignore"):  # `answers` refuses infinities
                answers["state"] = states[batch.answers].float().numpy(force=True)
        return answers

    def kept_answers(
        self, pairs: Sequence[Pair], file: Path, notify: Callable[[], None] = lambda: None
    ) -> np.ndarray:
        """Return the answers to pairs: those in the file, and others, which are added to it.

        notify: is called after each part. The parts are the same in every run, and so are their answers.
        """
        if not file.exists():
            write_whole(file, b"")
        kept = np.fromfile(file, self.answer_type)
        if len(kept) >= len(pairs):
            return kept[: len(pairs)]
        whole = len(kept) // PART * PART
        parts = [kept[:whole]]
        with file.open("r+b") as stream:
            stream.truncate(whole * self.answer_type.itemsize)
            stream.seek(0, 2)
            for start in range(whole, len(pairs), PART):
                parts.append(self.answers(pairs[start : start + PART]))
                stream.write(parts[-1].tobytes())
                stream.flush()
                notify()
        return np.concatenate(parts)
