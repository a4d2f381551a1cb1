"""The run of `headroom distil`: options, pairs and checkpoints, checked before torch is imported."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

from headroom.models.checkpoint.config import (
    ModelConfig,
    check_holds_floats,
    read_config,
    read_raw,
    read_stored_masks,
)
from headroom.models.checkpoint.files import check_empty, has_tensors
from headroom.models.checkpoint.hub import locate
from headroom.models.checkpoint.model_config import ScoreActivation
from headroom.models.checkpoint.tokenizer import load_tokenizer
from headroom.models.cores import check_device_name
from headroom.models.errors import ModelError
from headroom.models.files import Json
from headroom.models.masks.head_mask import HeadMask
from headroom.models.quality.labelled import (
    DEFAULT,
    HIGHEST_GRADE,
    SAMPLE,
    Columns,
    LabelledPair,
    Rows,
    columns_of_second,
    query_key,
    read_labelled,
)
from headroom.models.training.distil import pairs
from headroom.models.training.state import check_unfinished, fingerprint_of, option_name

SAMPLE_TEST = SAMPLE / "test.jsonl.gz"
"""The judged pairs that models of five grades are compared on, unless others are given."""

SAMPLE_GRADES = 5

NAMES = {
    "columns": "--query-column, --title-column, --grade-column or --delimiter",
    "cut": "--layers, --heads, --units or --mask",
    "teacher_labels": "order of the teacher's labels",
}
"""Options of the commands that do not have the names of ours."""


@dataclass(frozen=True, slots=True)
class StudentSize:
    """How many layers, heads per layer and units per layer a student keeps; None: all. mask: what goes,
    instead of those: a spec or a JSON form."""

    layers: int | None = None
    heads: int | None = None
    units: int | None = None
    mask: str | Json | None = None

    @property
    def keeps_all(self) -> bool:
        """Return whether nothing is cut."""
        return self == StudentSize()


@dataclass(frozen=True, slots=True)
class DistilOptions:
    """The options of a distillation.

    data: pairs without grades. teacher: a checkpoint directory or hub id; None for the shipped model, unless
    `scores` names the column that teaches. model: the student; None for the teacher, or the shipped model if
    the teacher is a decoder or a column. steps, minutes: how long it is trained; None for the default number
    of steps. teacher_labels: least relevant first; None for the order that the teacher's checkpoint says.
    """

    data: Path | Rows
    out: Path
    teacher: str | None = None
    scores: str | None = None
    model: str | None = None
    cut: StudentSize = StudentSize()
    test: Path | Rows | None = None
    steps: int | None = None
    minutes: float | None = None
    rate: float | None = None
    max_tokens: int = 128
    seed: int = 0
    device: str = "auto"
    columns: Columns = DEFAULT
    teacher_labels: tuple[str, ...] | None = None

    @property
    def work(self) -> Path:
        """Return the directory of the run's state, which exists until the run is done."""
        return self.out.with_name(f"{self.out.name}.distil")

    @property
    def pairs(self) -> Path:
        """Return the directory of the pairs' portions."""
        return self.work / "pairs"


@dataclass(frozen=True, slots=True)
class Job:
    """A distillation that has been checked.

    teacher: its directory; None if a column teaches. source: the directory of the checkpoint that the student
    is, or is cut from. test: the judged pairs, none without a file. survey: what the data holds.
    """

    options: DistilOptions
    teacher: Path | None
    source: Path
    config: ModelConfig
    test: list[LabelledPair]
    test_name: str
    survey: pairs.Survey
    fingerprint: dict[str, str]

    @property
    def is_cut_from_teacher(self) -> bool:
        """Return whether the student is a part of its teacher."""
        return self.source == self.teacher


def prepare(options: DistilOptions) -> Job:
    """Read and check the options, the data and the checkpoints.

    Writes nothing. Raises ModelError for wrong data or options, UnsupportedCheckpoint if the student's
    checkpoint cannot be trained.
    """
    check_device_name(options.device)
    check_empty(options.out)
    if options.scores is not None and options.teacher is not None:
        raise ModelError("--scores and --teacher: give one of them; either a column teaches or a model")
    teacher = None if options.scores is not None else locate(options.teacher)
    teacher_config = None if teacher is None else read_config(teacher, options.teacher_labels)
    source = _source(options, teacher, teacher_config)
    source_labels = options.teacher_labels if source == teacher else None
    config = _with_labels(source, read_config(source, source_labels), teacher_config)
    load_tokenizer(source, config)  # what it refuses could not be served after the training either
    check_holds_floats(source, config)
    _check_cut(source, config, options, teacher)
    test_file, test = _read_test(options, config)
    avoided = {query_key(pair.query) for pair in test}
    found = pairs.survey(options.data, options.columns, options.scores, avoided)
    fingerprint = _fingerprint(options, teacher, source, config, test_file)
    check_unfinished(options.work, fingerprint)
    return Job(options, teacher, source, config, test, str(test_file), found, fingerprint)


def write_pairs(job: Job) -> None:
    """Cut the data into portions, unless an earlier run did."""
    options = job.options
    if not options.pairs.exists():
        avoided = {query_key(pair.query) for pair in job.test}
        pairs.cut_into_portions(
            options.data, options.columns, options.scores, avoided, job.survey, options.pairs
        )


def _source(options: DistilOptions, teacher: Path | None, config: ModelConfig | None) -> Path:
    """Return the directory of the checkpoint that the student is, or is cut from."""
    if options.model is not None:
        return locate(options.model)
    if teacher is None or config is None or config.decoder is not None:
        return locate(None)
    return teacher


def is_plain_encoder(directory: Path) -> bool:
    """Return whether a checkpoint has no classifier of pairs: config.json names a network for something else,
    or a bare one or none, and the weights hold no classifier."""
    names = read_raw(directory).get("architectures") or ()
    if any("SequenceClassification" in name or "CausalLM" in name for name in names):
        return False
    is_bare = all(name.endswith("Model") for name in names)
    return not (is_bare and has_tensors(directory, "classifier.", "score."))


def _with_labels(source: Path, config: ModelConfig, teacher: ModelConfig | None) -> ModelConfig:
    """Return a student's configuration; a plain encoder gets the teacher's labels, or one if a column
    teaches."""
    if config.decoder is not None or not is_plain_encoder(source):
        return config
    labels = ("LABEL_0",) if teacher is None else teacher.labels
    activation: ScoreActivation = "softmax" if len(labels) > 1 else "sigmoid"
    return replace(
        config,
        labels=labels,
        label_order=tuple(range(len(labels))),
        is_order_known=True,
        temperature=1.0,
        bias=(0.0,),
        score_activation=activation,
    )


def _check_cut(source: Path, config: ModelConfig, options: DistilOptions, teacher: Path | None) -> None:
    """Raise ModelError if the student cannot keep what it is to keep, or would be its teacher."""
    cut = options.cut
    limits = {
        "layers": config.num_layers,
        "heads": max(map(len, config.kept_heads)),
        "units": max(config.widths),
    }
    for name, limit in limits.items():
        wanted: int | None = getattr(cut, name)
        if wanted is not None and not 1 <= wanted <= limit:
            per_layer = "" if name == "layers" else " per layer"
            raise ModelError(f"--{name} {wanted}: {source} has {limit} {name}{per_layer}; give 1 to {limit}")
    if cut.mask is not None:
        config.check_head_left(mask_of(source, config, cut.mask))
    kept = {name: getattr(cut, name) or limit for name, limit in limits.items()}
    if source == teacher and cut.mask is None and kept == limits:
        raise ModelError(
            "the student would be its teacher; give --layers, --heads or --units to cut it, or --model"
        )


def _read_test(options: DistilOptions, config: ModelConfig) -> tuple[Path | Rows | None, list[LabelledPair]]:
    """Return the source of judged pairs and its content; None and nothing without one."""
    test = options.test
    if test is None and len(config.labels) == SAMPLE_GRADES and SAMPLE_TEST.exists():
        test = SAMPLE_TEST
    if test is None:
        return None, []
    columns = DEFAULT if test == SAMPLE_TEST else columns_of_second(test, options.columns)
    if not config.is_graded:
        return test, read_labelled(test, grades=HIGHEST_GRADE + 1, columns=columns)
    return test, read_labelled(test, grades=len(config.labels), labels=config.labels, columns=columns)


def _fingerprint(
    options: DistilOptions, teacher: Path | None, source: Path, config: ModelConfig, test: Path | Rows | None
) -> dict[str, str]:
    values = {
        NAMES.get(field.name, option_name(field.name)): getattr(options, field.name)
        for field in fields(options)
        if field.name != "out"  # the `work` directory is found by the first
    }
    if options.cut.mask is not None:  # it may name a stored one, which is no part of the checkpoint's digest
        values["content of --mask"] = mask_of(source, config, options.cut.mask).id
    return fingerprint_of(values, (options.data, test), (teacher, source))


def mask_of(source: Path, config: ModelConfig, form: str | Json) -> HeadMask:
    """Return the mask that a cut names, of the checkpoint in `source`."""
    return config.parse_mask(form, read_stored_masks(source, config))
