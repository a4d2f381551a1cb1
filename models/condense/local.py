"""Condenses a query with a classifier in this process; its titles are tokenized once, and each distinct one
is scored once."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from headroom.models.arrays import Floats
from headroom.models.checkpoint.texts import EncodedText
from headroom.models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from headroom.models.classifier import Classifier
from headroom.models.condense.search import Condensed, Task, search
from headroom.models.errors import ModelError
from headroom.models.masks.head_mask import HeadMask
from headroom.models.scores import Scores, sigmoid

BATCH_TOKENS = 2048


def condense(
    classifier: Classifier,
    task: Task,
    titles: Sequence[str],
    head_mask: HeadMask | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Condensed:
    """Return the words of a query that keep the relevance of its titles, at least one, under a head mask.

    advance: called with how many more queries are judged.
    Raises ModelError if the query has no token, or a score is not finite.
    """
    encoded = Titles(classifier.tokenizer, titles)
    if not encoded.encode([task.query])[0].query_tokens:
        raise ModelError("the query holds no character that the model can read")
    steps = search(task, encoded.repeats)
    queries = next(steps)
    while True:
        judged = judge(classifier, encoded.encode(queries), head_mask)
        advance(len(queries))
        try:
            queries = steps.send(judged.reshape(len(queries), len(encoded.distinct), -1))
        except StopIteration as end:
            return with_unknown(classifier.tokenizer, task.query, end.value)


def judge(classifier: Classifier, rows: Sequence[EncodedPair], head_mask: HeadMask | None = None) -> Floats:
    """Return the distribution over the grades of each row, (n, grades)."""
    masks = None if head_mask is None else [head_mask] * len(rows)
    return distributions(classifier.scores(classifier.logits(rows, masks, BATCH_TOKENS)))


def distributions(scores: Scores) -> Floats:
    """Return the distribution over the grades of n pairs, (n, grades).

    A one-label model has two grades, with the probabilities 1 − p and p for its sigmoid p.
    """
    values = scores.probabilities.astype(np.float64)
    if not np.isfinite(values).all():
        raise ModelError("the model gave no finite score")
    if values.shape[1] == 1:
        return np.stack([sigmoid(-scores.raw_score), sigmoid(scores.raw_score)], axis=1)
    return values


class Titles:
    """The titles of one request, at least one.

    distinct: each once. repeats: how often each of them comes. texts: the distinct ones, as they are encoded.
    encoded: the same, once they are read.
    """

    def __init__(self, tokenizer: PairTokenizer, titles: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        counts = Counter(titles)
        self.distinct = list(counts)
        self.repeats = list(counts.values())
        self.texts = [title for _, title in tokenizer.padded_pairs([("", title) for title in self.distinct])]
        self.encoded: dict[str, EncodedText] = {}

    def encode(self, queries: Sequence[str]) -> list[EncodedPair]:
        """Return each query with each distinct title, query by query."""
        if not self.encoded:
            self.encoded = self.tokenizer.encode_texts(self.texts)
        pairs = self.tokenizer.padded_pairs([(query, title) for query in queries for title in self.distinct])
        asked = self.tokenizer.encode_texts({query for query, _ in pairs})
        return self.tokenizer.join(pairs, self.encoded | asked)


def with_unknown(tokenizer: PairTokenizer, query: str, condensed: Condensed) -> Condensed:
    """Return the result with a note if the model's vocabulary cannot read all of the query."""
    text = tokenizer.encode_texts([query])[query]
    if not text.unknown:
        return condensed
    unread = f"The model's vocabulary cannot read {text.unknown} of the query's {text.tokens} tokens."
    return replace(condensed, note=" ".join(filter(None, (unread, condensed.note))))
