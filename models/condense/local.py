"""Condenses a query with a classifier in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from models.batch import batches_by_length
from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier
from models.condense.loss import Floats, check_grades, distributions
from models.condense.search import Condensed, Task, search
from models.condense.titles import Titles, with_unknown
from models.errors import ModelError
from models.masks.head_mask import HeadMask
from models.masks.rows import RowMasks

BATCH_TOKENS = 2048


def condense(
    classifier: Classifier,
    task: Task,
    titles: Sequence[str],
    head_mask: HeadMask | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Condensed:
    """Return the words of a query that keep the relevance of its titles, at least one, under a head mask.

    task: says how, and holds the grades of the titles if they are known. advance: told how many more
    queries are judged. Raises ModelError if the query has no token, grades do not fit, or a score is not
    finite.
    """
    if task.grades is not None:
        check_grades(task.grades, len(titles))
    encoded = Titles(classifier.tokenizer, titles)
    if not encoded.encode([task.query])[0].query_tokens:
        raise ModelError("the query holds no character that the model can read")
    steps = search(task)
    queries = next(steps)
    while True:
        judged = judge(classifier, encoded.encode(queries), head_mask)
        advance(len(queries))
        try:
            queries = steps.send(encoded.spread(judged, len(queries)))
        except StopIteration as end:
            return with_unknown(classifier.tokenizer, task.query, end.value)


def judge(classifier: Classifier, rows: Sequence[EncodedPair], head_mask: HeadMask | None = None) -> Floats:
    """Return the distribution over the grades of each row, (n, grades)."""
    logits = np.empty((len(rows), len(classifier.config.labels)), np.float32)
    weights = None if head_mask is None else RowMasks.of(head_mask)
    for batch in batches_by_length([len(row) for row in rows], BATCH_TOKENS):
        logits[batch] = classifier.forward([rows[index] for index in batch], weights)
    return distributions(classifier.scores(logits))
