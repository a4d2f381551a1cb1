"""The shapes of answers.

Plain slotted dataclasses: orjson writes them field by field in this order, numpy numbers and rows included,
and FastAPI documents them from the annotations. Nothing validates them on the way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import orjson
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from headroom.service.descriptions import documented

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Number = float | np.float32
    Numbers = Sequence[float] | NDArray[np.float32]
    Matrix = NDArray[np.float32]
    WrittenMatrix = Matrix | orjson.Fragment
else:
    Number = float
    Numbers = list[float]
    Matrix = WrittenMatrix = list[list[float]]

AnsweringModel = Annotated[str, Field(description="The checkpoint that scores.")]
AnsweringVariant = Annotated[str, Field(description="The variant that scores.")]


@documented
@dataclass(slots=True)
class HeadMaskInfo:
    """A mask: its id, its spec, and how much of the network it leaves on."""

    id: str
    """First 12 hex digits of the SHA-256 of weights, skipped layers and units off."""
    spec: str
    """The canonical spec: heads that are off, layers that are skipped."""
    heads_on: int
    """Heads with a weight above 0 in layers that are computed."""
    heads: int
    """Heads in all: layers × heads per layer."""
    units_on: int
    """Feed-forward units that are on in layers that are computed."""
    units: int
    """Feed-forward units of all layers."""
    layers_on: int
    """Layers that are computed."""
    layers: int
    """Layers in all."""


@documented
@dataclass(slots=True)
class Assignment:
    """The experiment's arm that a unit was assigned to."""

    experiment: str
    """The experiment's name in the config."""
    arm: str
    """The arm, whose variant scored; `interleaved` if both arms' did."""
    bucket: int
    """The unit's bucket, from 0 to 9,999."""
    fallback: bool = False
    """Whether the arm's variant failed, so that the control's scored."""
    impression: str | None = None
    """The id of an interleaved answer, for the outcomes of clicks on it; else null. Also sent as the
    `X-Impression` header. The same again if `query_id`, unit and experiment are the same."""


@documented
@dataclass(slots=True)
class Chunk:
    """The part of a long title that its scores are of: title[start:end], counted in Unicode code points."""

    index: int
    """The best chunk's number, from 0; the first of equal ones."""
    chunks: int
    """Chunks that the title was cut into."""
    start: int
    """Its first character's position in the title."""
    end: int
    """The position after its last character."""


@documented
@dataclass(slots=True)
class StageInfo:
    """A stage of a cascade, and how much it scored in this request."""

    variant: AnsweringVariant
    model: AnsweringModel
    head_mask: HeadMaskInfo
    """The mask that was applied in this stage."""
    pairs: int
    """Pairs that this stage scored; 0 if it was not needed."""


Stages = Annotated[
    list[StageInfo] | None,
    Field(
        description="Of a cascade, its stages in order, or those of both arms of an interleaved answer; else "
        "null."
    ),
]


@documented
@dataclass  # without slots: orjson then writes it three times as fast
class ScoreResult:
    """One pair's relevance. The grade fields are null for models that give one score and no grades. `empty`,
    `chunk`, `stage`, `scored` and `rank` are left out where they say nothing."""

    # The last ones are no arguments of `__init__`: orjson writes what an instance has set, and a default
    # stays with the class.

    index: int
    """Position in the request."""
    grade: int | None
    """From 0 (least relevant): the lowest grade with half of the probability on it or below."""
    label: str | None
    """The grade's name."""
    expected_grade: Number | None
    """The grades' mean under the probabilities."""
    score: Number
    """expected_grade / (grades − 1), in [0, 1]; of a model that gives one score, its sigmoid, or its raw
    logit, any number, if the model's `score_activation` is identity. A cascade lowers it for titles that a
    stage left behind, as far as needed to stay below those it kept."""
    probabilities: Numbers | None
    """One per grade."""
    tokens: int
    """Tokens scored, the special ones and all chunks included."""
    unknown_tokens: int
    """Those of them that the vocabulary could not read."""
    truncated: bool
    """Whether some of the text was cut off and not scored."""
    raw_score: Number = 0.0
    """What ranks the titles: log(score / (1 − score)), computed from the logits, so it tells titles apart
    whose score rounds to 1 or 0. Of a model that gives one score, its logit."""
    empty: bool = field(default=False, init=False)
    """True: the title holds nothing that the model can read. It then has the lowest grade and score,
    whatever the model would say, and ranks last."""
    chunk: Chunk | SkipJsonSchema[None] = field(default=None, init=False)
    """With `overflow: chunks`, the best chunk of a title that did not fit."""
    stage: str | SkipJsonSchema[None] = field(default=None, init=False)
    """The variant whose stage of a cascade scored the title last; grades and probabilities are that
    variant's."""
    scored: bool = field(default=True, init=False)
    """False: no model scored the pair. It has no grade, and its score says nothing but the order: 0 for all
    titles of a request that failed; of the variant `original` falling from 1."""
    rank: int | SkipJsonSchema[None] = field(default=None, init=False)
    """The title's position in the order of an interleaved answer, from 1. Scores fall along it: a
    title whose score does not is lowered as far as needed. Grades and probabilities are those of the arm that
    picked the title."""
    _logits: SkipJsonSchema[Numbers] = ()  # orjson leaves out names that begin with an underscore

    @property
    def logits(self) -> Numbers:
        """Return what the network gave, one per label: for other clients' shapes, not for JSON."""
        return self._logits


@documented
@dataclass(slots=True)
class Usage:
    """What was scored; a pair counts once for each mask, and once for each stage, that scored it."""

    pairs: int
    """Pairs scored."""
    tokens: int
    """Tokens scored."""


@documented
@dataclass(slots=True)
class Timing:
    """Milliseconds spent in each stage; also sent as the `Server-Timing` header."""

    tokenize: float
    """Reading the texts into tokens."""
    queue: float
    """Waiting to be part of a batch."""
    inference: float
    """In the model."""
    total: float
    """From the arrival of the body to the answer."""


@documented
@dataclass(slots=True)
class ScoreResponse:
    """The relevance of each pair, and what judged it."""

    model: AnsweringModel
    variant: AnsweringVariant
    head_mask: HeadMaskInfo
    """The mask that was applied, the variant's included; of a cascade, the last stage's. Of an interleaved
    answer, `model`, `variant` and `head_mask` are control's."""
    assignment: Assignment | None
    """Null if no experiment decided the variant."""
    degraded: bool
    """Whether the load has made the answer worse: `variant` stands in for the default while the queue is long
    (`degrade` in the config), or a cascade left out its later stages, as they would have missed the
    deadline."""
    results: list[ScoreResult]
    """In the request's order, without those that `min_score` or `min_grade` leaves out."""
    usage: Usage
    timing_ms: Timing
    stages: Stages = None
    reranked: bool = True
    """Whether the titles are in the order that was asked for, also that of the variant `original`; false if
    they could not be scored, with `on_failure: original_order`. Also sent as the `X-Reranked` header."""
    reason: str | None = None
    """If `reranked` is false, why: the type of an error, such as `deadline_exceeded`."""
    dropped: int = 0
    """Titles that `min_score` or `min_grade` left out."""
    _labels: SkipJsonSchema[Sequence[str]] = ()

    @property
    def labels(self) -> Sequence[str]:
        """The names of the logits, for the routes of other people's clients; a one-label model has one."""
        return self._labels


@documented
@dataclass(slots=True)
class CompareColumn:
    """One mask's or variant's scores."""

    head_mask: HeadMaskInfo
    variant: AnsweringVariant
    results: list[ScoreResult]
    """In the request's order."""
    stages: Stages = None
    degraded: bool = False
    """Whether a cascade left out its later stages; see `degraded` of /v1/score."""


@documented
@dataclass(slots=True)
class CompareResponse:
    """The same pairs' relevance under each mask and variant."""

    model: AnsweringModel
    columns: list[CompareColumn]
    """In the order asked, masks first."""
    usage: Usage
    timing_ms: Timing


@documented
@dataclass(slots=True)
class HeadAttention:
    """One head's attention probabilities."""

    layer: int
    """From 0."""
    head: int
    """Within the layer, from 0."""
    probabilities: WrittenMatrix
    """n × n: row i says where token i looks."""


@documented
@dataclass(slots=True)
class AttentionResponse:
    """The attention probabilities of the chosen heads over one pair."""

    model: AnsweringModel
    variant: AnsweringVariant
    head_mask: HeadMaskInfo
    tokens: list[str]
    """The n tokens as the vocabulary writes them, special ones included."""
    texts: list[str]
    """The n tokens as people read them, with a space before the first one of a word. Of tokens that share a
    character, the first has it and the others are empty."""
    special: list[int]
    """The positions of the tokens that belong to neither text, such as [SEP] or a prompt's."""
    segments: list[int]
    """0 for the query's tokens, 1 for the title's."""
    heads: list[HeadAttention]
    """The chosen heads, by layer and number."""
    timing_ms: Timing


@documented
@dataclass(slots=True)
class ErrorDetail:
    """One error."""

    type: str
    """Stable; for programs."""
    message: str
    """One sentence; for people."""
    param: Annotated[str | None, Field(examples=["titles[3]"])]
    """The field at fault."""


@dataclass(slots=True)
class Error:
    """The body of every answer that is not a success."""

    error: ErrorDetail
