"""Reads labelled pairs as models can be judged on them."""

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path

from headroom.models.checkpoint.config import ModelConfig
from headroom.models.errors import ModelError
from headroom.models.quality.comparison import Truth
from headroom.models.quality.labelled import HIGHEST_GRADE, Columns, LabelledPair, Rows, read_labelled
from headroom.models.quality.order import positioned


def shared_labels(configs: Sequence[ModelConfig]) -> tuple[str, ...]:
    """Return the names of the grades that judge these models: () if none of them has grades, or not as many
    as another."""
    graded = [config.labels for config in configs if config.is_graded]
    return graded[0] if len({len(labels) for labels in graded}) == 1 else ()


def read_truth(
    path: Path | Rows, configs: Sequence[ModelConfig], columns: Columns, relevant: int | None
) -> tuple[Truth, tuple[str, ...]]:
    """Return pairs as all of these models can be judged on them, and the names of the grades.

    If all models with grades have as many, grades are theirs. Else they are any from 0 to HIGHEST_GRADE, the
    models are judged by their order, and there are no names.
    relevant: the lowest grade that counts as relevant; None: the highest of the models' grades, or without
    grades 1. Raises ModelError as `read_labelled` and `positioned` do, and if there is no such
    grade.
    """
    labels = shared_labels(configs)
    if labels:
        _check_relevant(relevant, len(labels) - 1, "the model's grades")
        pairs = read_labelled(path, grades=len(labels), labels=labels, columns=columns)
        pairs = positioned(pairs, columns, str(path))
        return Truth(pairs, relevant or len(labels) - 1), labels
    _check_relevant(relevant, HIGHEST_GRADE, "the grades")
    names = max((config.labels for config in configs if config.is_graded), key=len, default=())
    pairs = read_labelled(path, grades=HIGHEST_GRADE + 1, labels=names, columns=columns)
    pairs = positioned(pairs, columns, str(path))
    if len({pair.grade for pair in pairs}) == 1:
        raise ModelError(f"{path}: every pair has grade {pairs[0].grade}; an order takes two grades to judge")
    return Truth(pairs, relevant or 1, has_grades=False), ()


def read_relevance(
    path: Path | Rows, config: ModelConfig, columns: Columns, relevant: int | None
) -> tuple[list[LabelledPair], int]:
    """Return pairs of which a share is relevant to a model, and the lowest grade that counts as relevant.

    relevant: that grade; None: the highest of the model's grades. A one-label model's pairs have the grades 0
    and 1 if it is None, else any from 0 to HIGHEST_GRADE. Raises ModelError if the file cannot be read.
    """
    if config.is_graded:
        grades = len(config.labels)
        pairs = read_labelled(path, grades=grades, labels=config.labels, columns=columns)
        return pairs, relevant or grades - 1
    grades = 2 if relevant is None else HIGHEST_GRADE + 1
    return read_labelled(path, grades=grades, columns=columns), relevant or 1


def _check_relevant(relevant: int | None, highest: int, grades: str) -> None:
    """Raise ModelError if the lowest grade that counts as relevant is none of the grades above 0."""
    if relevant is None or (isinstance(relevant, Integral) and 0 < relevant <= highest):
        return
    raise ModelError(f"relevant: {relevant} is outside {grades} above 0, 1 to {highest}")
