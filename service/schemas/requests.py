"""The shapes of requests, as the API validates and documents them.

pydantic checks types and shapes; `check` what types cannot express, and the limits that the operator sets.
What depends on the model (masks, variants) is checked in `headroom.service.scoring`. Answers are in
`responses`.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    Strict,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from headroom.models.checkpoint.chunks import LongTitles, Overflow
from headroom.service.config.settings import OnFailure, Settings
from headroom.service.errors import InvalidRequest
from headroom.service.experiments.events import MAX_TEXT
from headroom.service.fields import NUMBER, STORABLE, WHOLE_NUMBER, Unit

MAX_COLUMNS = 64
"""Maximum masks and variants of one `/v1/compare`."""
MAX_GRADE = 30
MAX_NAME_CHARS = 64
MAX_INSTRUCTION_CHARS = 4_096
MAX_SPEC_CHARS = 16_384  # every head of a 24 x 16 model, listed one by one, is under 3,000

_INTEGERS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_HEADS = {"type": "array", "items": {**_INTEGERS, "minItems": 2, "maxItems": 2}}
_WEIGHTS = {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}}
_FORMS = {"off": _HEADS, "keep": _HEADS, "weights": {"type": "array", "items": _WEIGHTS}, "skip": _INTEGERS}
MASK_SCHEMA: dict[str, Any] = {
    "description": (
        "Which attention heads to switch off: `none`, `2.3`, `2.3,4.0-5,7.*`, `6-11.*`, `keep:2.3,4.*`, "
        "`random:0.2@7`, `random:0.2@7/6-11.*`, `@name`; which whole layers to skip, alone or in a list: "
        "`skip:3`, `2.3,skip:6-11`; or an object with `off`, `keep` (lists of [layer, head]) or `weights` "
        "(layers × heads numbers in [0, 1]), and `skip` (a list of layers) beside it or alone."
    ),
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": MAX_SPEC_CHARS},
        {"title": "Heads", "type": "object", "properties": _FORMS, "additionalProperties": False},
    ],
}


def accepted(is_right: Callable[[Any], bool], sentence: str) -> PlainValidator:
    """Return a validator that takes a value as it is, if it is right; `sentence` says what it should be."""

    def check(value: Any) -> Any:
        if not is_right(value):
            raise PydanticCustomError("form", sentence)
        return value

    return PlainValidator(check)


MaskField = Annotated[
    str | dict[str, Any],
    # The outer type only: `HeadMask.parse`, which knows the grammar and the model, checks the rest.
    accepted(
        lambda form: isinstance(form, dict) or (isinstance(form, str) and len(form) <= MAX_SPEC_CHARS),
        f"should be a mask spec such as '2.3,4.*', of at most {MAX_SPEC_CHARS} characters, or an object",
    ),
    WithJsonSchema(MASK_SCHEMA),
]
Text = Annotated[
    str,
    Field(description="Any length; truncated to the model's window (see `overflow`), which the answer says."),
]
Query = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1, "pattern": r"\S"})]
VariantName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
Pair = Annotated[tuple[Query, Text], Strict(False)]  # JSON has no tuples: a list of two strings
DeadlineMs = Annotated[
    Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER] | None,
    Field(
        description="Milliseconds from the arrival of the request. Work not begun by then is dropped: 504."
    ),
]


Instruction = Annotated[
    Annotated[str, Field(max_length=MAX_INSTRUCTION_CHARS)] | None,
    Field(
        description="What makes a title relevant, for models whose prompt has an instruction, such as "
        "Qwen3-Reranker; default: the model's own. Other models ignore it."
    ),
]

Ids = Annotated[
    Annotated[list[Annotated[str, Field(min_length=1, max_length=MAX_TEXT), STORABLE]], Field(fail_fast=True)]
    | None,
    Field(
        description="Your ids of the titles, one each, in their order: changes no score; events of an "
        "interleaved experiment then may name a title by its id."
    ),
]

QueryId = Annotated[
    Annotated[str, Field(min_length=1, max_length=MAX_TEXT), STORABLE] | None,
    Field(
        description="Your own id of this list, such as User Behavior Insights' `query_id`: changes no score; "
        "clicks on an interleaved list may then name it in place of the `impression`. Use each for one list."
    ),
]

Grades = (
    Annotated[list[Annotated[int, Field(ge=0, le=MAX_GRADE), WHOLE_NUMBER]], Field(fail_fast=True)] | None
)


def example(**fields: Any) -> ConfigDict:
    """Return the part of a model's config that shows this request in the documentation."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class Request(BaseModel):
    """A request body: strict types (a number is not a string), no unknown fields, null means absent."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_many_fields(cls, value: Any) -> Any:
        # One error, not one for each of a million unknown fields.
        if isinstance(value, dict) and len(value) > len(cls.model_fields):
            unknown = next(key for key in value if key not in cls.model_fields)
            return {key: value[key] for key in (*cls.model_fields, unknown) if key in value}
        return value


class ChosenNetwork(BaseModel):
    """The fields of a request that choose what answers it, and until when."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    variant: VariantName | None = None
    """A variant of `GET /v1/variants`; `original` is the order in which the titles came."""
    head_mask: MaskField | None = None
    """Multiplied onto the variant's own mask."""
    instruction: Instruction = None
    deadline_ms: DeadlineMs = None


class ScoringFields(ChosenNetwork):
    """These fields, and those from which an experiment chooses the variant."""

    unit: Unit | None = None
    """Who is asking, for the assignment to an experiment's arm."""
    arm: VariantName | None = None
    """The arm that you assigned the unit to yourself, in place of the experiment: its variant scores, and the
    unit counts as exposed to it."""
    experiment: VariantName | None = None
    """The experiment of `arm`; needed if several have an arm of this name."""
    on_failure: OnFailure | None = None
    """What to answer if the titles cannot be scored, all or in time: an `error`, or them in the order in
    which they came (`original_order`). Default: `on_failure` in the config. A wrong request is an error in
    any case."""
    min_score: Annotated[float, Field(allow_inf_nan=False), Strict(), NUMBER] | None = None
    """Titles with a `score` below this are left out, before the best ones are chosen. From 0 to 1, or any
    number if the model's `score_activation` is identity. In an interleaved experiment, control's scores
    decide for both arms."""
    min_grade: Annotated[int, Field(ge=0, le=MAX_GRADE), Strict(), WHOLE_NUMBER] | None = None
    """Titles with a `grade` below this are left out, before the best ones are chosen. In an interleaved
    experiment, control's grades decide for both arms."""

    @property
    def has_cutoff(self) -> bool:
        """Return whether titles that are not relevant enough are left out."""
        return self.min_score is not None or self.min_grade is not None

    def keeps_order(self, default: OnFailure) -> bool:
        """Return whether a failure is answered with the titles in the order in which they came.

        default: the config's `on_failure`.
        """
        return (self.on_failure or default) == "original_order"


_EITHER_FORM: dict[str, Any] = {
    "oneOf": [
        {
            "title": title,
            "type": "object",
            "required": list(form),
            "properties": {**{other: {"type": "null"} for other in others}, **form},
        }
        for title, form, others in (
            ("query and titles", {"query": {"type": "string"}, "titles": {"type": "array"}}, ("pairs",)),
            ("pairs", {"pairs": {"type": "array"}}, ("query", "titles")),
        )
    ]
}
"""A query with titles, or pairs."""


def too_many(count: int, param: str, settings: Settings) -> InvalidRequest:
    """Return the error of a request that has more texts than it may."""
    return InvalidRequest(f"{count} are more than the {settings.max_pairs} of one request", param=param)


def check_query(query: str, param: str) -> None:
    """Raise InvalidRequest if a query is blank."""
    # The tokenizer drops control and other unprintable characters, so a query of those alone is blank too.
    # A set, because there may be millions. The space is the only blank that counts as printable.
    if not query.strip() or not (query.isprintable() or any(map(str.isprintable, set(query) - {" "}))):
        raise InvalidRequest("must not be blank", param=param)


class PairsRequest(Request):
    """A request about pairs: a query with titles, or pairs, but not both."""

    query: Query | None = None
    """What was searched for; not blank."""
    titles: Annotated[list[Text], Field(min_length=1, fail_fast=True)] | None = None
    """The titles to judge; an empty one is allowed."""
    pairs: Annotated[list[Pair], Field(min_length=1, fail_fast=True)] | None = None
    """[query, title] pairs, in place of `query` and `titles`."""
    overflow: Overflow = "truncate"
    """What becomes of a title that does not fit into the model's window beside its query. `truncate`: its
    beginning is scored. `chunks`: all of it is scored, in chunks that overlap by a sixth, and the best
    chunk's scores count; a query longer than half the window is cut to that."""
    deadline_ms: DeadlineMs = None

    @property
    def long_titles(self) -> LongTitles | None:
        """How much to read of titles that do not fit the window. None: truncate them."""
        return None if self.overflow == "truncate" else LongTitles(self.overflow)

    @property
    def texts_field(self) -> str:
        """Return the name of the field that holds the titles."""
        return "titles" if self.pairs is None else "pairs"

    def texts(self) -> list[tuple[str, str]]:
        """Return the (query, title) pairs in request order, from either form."""
        if self.pairs is not None:
            return self.pairs
        return [(self.query or "", title) for title in self.titles or ()]

    def check(self, settings: Settings) -> None:
        """Raise InvalidRequest, which names field and limit, if pairs are blank, too many or in two forms."""
        if self.pairs is not None:
            if self.query is not None or self.titles is not None:
                raise InvalidRequest("give either pairs, or query and titles, not both", param="pairs")
            if len(self.pairs) > settings.max_pairs:
                raise too_many(len(self.pairs), "pairs", settings)
            for number, (query, _) in enumerate(self.pairs):
                check_query(query, f"pairs[{number}][0]")
            return
        if self.query is None or self.titles is None:
            param = "query" if self.query is None else "titles"
            raise InvalidRequest("is missing; give query and titles, or pairs", param=param)
        if len(self.titles) > settings.max_pairs:
            raise too_many(len(self.titles), "titles", settings)
        check_query(self.query, "query")


class ScoreRequest(ScoringFields, PairsRequest):
    """Grade how relevant each title is to the query."""

    grades: Grades = None
    """How relevant each title is known to be, from 0, where it is: changes no score; an experiment's shadow
    comparison then knows the NDCG of each arm."""
    ids: Ids = None
    query_id: QueryId = None

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [_EITHER_FORM],
            "examples": [
                {"query": "angle bracket", "titles": ["12-Gauge Angle", "Screws"], "head_mask": "2.3,7.*"},
                {"pairs": [["angle bracket", "Simpson Strong-Tie 12-Gauge Angle"]], "deadline_ms": 200},
                {"query": "angle bracket", "titles": ["Screws", "12-Gauge Angle"], "variant": "original"},
            ],
        }
    )

    def check(self, settings: Settings) -> None:
        """Raise InvalidRequest."""
        super().check(settings)
        titles = len((self.titles if self.pairs is None else self.pairs) or ())
        for name, values in (("grades", self.grades), ("ids", self.ids)):
            if values is not None and len(values) != titles:
                raise InvalidRequest(f"{len(values)} {name} for {titles} titles", param=name)
        if self.arm is not None or self.experiment is not None:
            self._check_arm()

    def _check_arm(self) -> None:
        """Raise InvalidRequest if the fields that choose an arm contradict each other."""
        if self.arm is None:
            raise InvalidRequest("is missing beside experiment; name one of its arms", param="arm")
        if self.unit is None:
            raise InvalidRequest("is missing beside arm; say whose arm it is", param="unit")
        for name in ("variant", "head_mask"):
            if getattr(self, name) is not None:
                raise InvalidRequest(f"give either an arm or a {name}, not both", param="arm")

    @property
    def titles_shown(self) -> int | None:
        """The number of titles that the answer shows, the best ones; None: all."""
        return None

    def ranked_query(self) -> str | None:
        """Return the query whose titles the answer puts into an order; None if it is no order."""
        if self.pairs is None:
            return self.query
        queries = {query for query, _ in self.pairs}
        return queries.pop() if len(queries) == 1 else None


class DocumentsRequest(ScoreRequest):
    """A ScoreRequest with ways of reading that /v1 does not take.

    A document is cut off after `max_tokens_per_doc` tokens first. With `overflow="chunks"`, at most
    `max_chunks_per_doc` chunks of it are scored. Text beyond either limit makes its result `truncated`.

    keep: which part is read of texts that do not fit into the window; "all": such texts are refused.
    alone: the indices of the pairs whose query is read by itself; their title is empty.
    is_ranked: whether the answer is an order of the titles. top_n: how many of them it shows; None: all.
    """

    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    max_chunks_per_doc: Annotated[int, Field(ge=1)] | None = None
    keep: Literal["beginning", "end", "all"] = "beginning"
    alone: frozenset[int] = frozenset()
    is_ranked: bool = True
    top_n: int | None = None

    @property
    def titles_shown(self) -> int | None:
        """The number of titles that the answer shows, the best ones; None: all."""
        return self.top_n

    def ranked_query(self) -> str | None:
        """Return the query whose titles the answer puts into an order; None if it is no order."""
        return super().ranked_query() if self.is_ranked else None

    @property
    def long_titles(self) -> LongTitles | None:
        """How much to read of each document. None: truncate it to the window."""
        if self.overflow == "truncate" and self.max_tokens_per_doc is None:
            return None
        return LongTitles(self.overflow, self.max_tokens_per_doc, self.max_chunks_per_doc)


class CompareRequest(PairsRequest):
    """Score the same pairs under several masks and variants, in the same batches."""

    masks: Annotated[list[MaskField], Field(fail_fast=True)] = Field(default_factory=list)
    """One column each, on the default variant; if that is `original`, on the first one."""
    variants: Annotated[list[VariantName], Field(fail_fast=True)] = Field(default_factory=list)
    """One column each, after the masks."""
    instruction: Instruction = None

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [_EITHER_FORM],
            "examples": [
                {"query": "angle bracket", "titles": ["12-Gauge Angle"], "masks": ["none", "6-11.*"]}
            ],
        }
    )

    def check(self, settings: Settings) -> None:
        """Raise InvalidRequest, also for too many rows: pairs × masks and variants."""
        super().check(settings)
        pairs = len(self.texts())
        columns = len(self.masks) + len(self.variants)
        if columns == 0:
            raise InvalidRequest("give at least one mask or variant to compare", param="masks")
        if columns > MAX_COLUMNS:
            raise InvalidRequest(
                f"{columns} masks and variants are more than the {MAX_COLUMNS} of one compare",
                param="masks" if self.masks else "variants",
            )
        if pairs * columns > settings.max_compare_rows:
            raise InvalidRequest(
                f"{pairs} pairs under {columns} masks and variants are {pairs * columns} rows; "
                f"the limit is {settings.max_compare_rows}",
                param=self.texts_field,
            )


class AttentionRequest(ChosenNetwork, Request):
    """Ask for the attention probabilities of chosen heads over one pair."""

    model_config = example(query="angle bracket", title="Simpson 12-Gauge Angle", heads="2.3,4.*")

    texts_field: ClassVar[str] = "title"

    query: Query
    """What was searched for; not blank."""
    title: Text
    heads: Annotated[str, Field(min_length=1, max_length=MAX_SPEC_CHARS)]
    """The heads to show, as the list form of a mask: `2.3,4.*`."""

    def check(self, _: Settings) -> None:
        """Raise InvalidRequest."""
        check_query(self.query, "query")
