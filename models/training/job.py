"""The run of `headroom train`: options and pairs, checked before torch is imported."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from headroom.models.checkpoint.config import check_holds_floats, read_config
from headroom.models.checkpoint.files import check_empty
from headroom.models.checkpoint.hub import locate
from headroom.models.checkpoint.tokenizer import load_tokenizer
from headroom.models.cores import check_device_name
from headroom.models.errors import ModelError
from headroom.models.quality.labelled import (
    DEFAULT,
    Columns,
    LabelledPair,
    columns_of_second,
    digest,
    query_key,
    read_labelled,
)
from headroom.models.training.state import check_unfinished, fingerprint_of, option_name

log = logging.getLogger(__name__)

GRADES = ("irrelevant", "related", "partial", "close", "exact")
"""The labels of the shipped model."""

OPTIONS = {"base": "--model", "columns": "--query-column, --title-column, --grade-column or --delimiter"}
"""Options of the command that do not have the names of ours."""

VALIDATION_SHARE = 10
"""One query in ten is used for validation if no validation file is given."""

MIN_VALIDATION = 3
"""Minimum number of validation queries, unless it is more than a third of all."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The options of a training run.

    base: a checkpoint directory or hub id; None for the shipped model.
    labels: names of the grades, least relevant first; data holds their numbers, from 0.
    epochs, rate: None to choose by the pairs and the network (tuning.planned).
    """

    data: Path
    out: Path
    validation: Path | None = None
    base: str | None = None
    labels: tuple[str, ...] = GRADES
    epochs: int | None = None
    rate: float | None = None
    max_tokens: int = 128
    seed: int = 0
    device: str = "auto"
    columns: Columns = DEFAULT

    @property
    def work(self) -> Path:
        """Return the directory of the run's state, which exists until the run is done."""
        return self.out.with_name(f"{self.out.name}.training")


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A training run that has been checked.

    training, validation: the pairs; no query is in both. base: the directory of the checkpoint to start from.
    fingerprint: the value of each option, and the SHA-256 of each file that the run reads.
    """

    options: TrainingOptions
    training: Sequence[LabelledPair]
    validation: Sequence[LabelledPair]
    base: Path
    fingerprint: dict[str, str]


def prepare(options: TrainingOptions) -> TrainingRun:
    """Read and check the options, the data and the checkpoint. Writes nothing.

    Raises ModelError for wrong data or options, UnsupportedCheckpoint if the checkpoint cannot be trained.
    """
    check_device_name(options.device)
    check_empty(options.out)
    training, validation = read_split(options)
    directory = locate(options.base)
    config = read_config(directory)
    load_tokenizer(directory, config)  # what it refuses could not be served after the training either
    check_holds_floats(directory, config)
    fingerprint = _fingerprint(options, directory)
    check_unfinished(options.work, fingerprint)
    return TrainingRun(options, training, validation, directory, fingerprint)


def _fingerprint(options: TrainingOptions, base: Path) -> dict[str, str]:
    values = {
        OPTIONS.get(name, option_name(name)): value
        for name, value in asdict(options).items()
        if name != "out"  # the `work` directory is found by it
    }
    texts = [
        None if file is None else Path(file) for file in (options.columns.queries, options.columns.titles)
    ]
    return fingerprint_of(values, (options.data, options.validation, *texts), (base,))


def read_split(options: TrainingOptions) -> tuple[list[LabelledPair], list[LabelledPair]]:
    """Return training and validation pairs; no query is in both, not even with other capitals or spaces.

    Without a validation file, a tenth of the queries (up to a third if there are few) are for validation:
    those with the lowest hashes, so every run uses the same ones.
    """
    grades = len(options.labels)
    if grades < 2 or len(set(options.labels)) < grades:
        raise ModelError("labels must be at least two different names, least relevant first")
    read = partial(read_labelled, grades=grades, labels=options.labels)
    pairs = read(options.data, columns=options.columns)
    _warn_of_unused_grades(pairs, options.labels)
    if options.validation is None:
        queries = sorted({query_key(pair.query) for pair in pairs}, key=digest)
        count = max(round(len(queries) / VALIDATION_SHARE), min(MIN_VALIDATION, len(queries) // 3), 1)
        chosen = set(queries[:count])
        validation = [pair for pair in pairs if query_key(pair.query) in chosen]
    else:
        columns = columns_of_second(options.validation, options.columns)
        validation = read(options.validation, columns=columns)
        chosen = {query_key(pair.query) for pair in validation}
    training = [pair for pair in pairs if query_key(pair.query) not in chosen]
    if not training or not validation:
        raise ModelError(
            f"{options.data}: {len(training)} training and {len(validation)} validation pairs; "
            "give more queries, or a validation file with others"
        )
    return training, validation


def _warn_of_unused_grades(pairs: Sequence[LabelledPair], labels: Sequence[str]) -> None:
    """Warn if some grade has no pair: with grades 0 to 3 and five labels, the best pairs would be third."""
    present = {pair.grade for pair in pairs}
    unused = [f"{grade} ({label})" for grade, label in enumerate(labels) if grade not in present]
    if unused:
        log.warning(
            "no pair has grade %s; if the file has fewer grades than %d, name them with --labels",
            ", ".join(unused),
            len(labels),
        )
