"""The request and the answers of POST /v1/condense."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from headroom.models.condense.search import METHODS, Method, largest_cost
from headroom.models.condense.words import count_words
from headroom.models.generate.search import MAX_BEAMS
from headroom.service.config.settings import Settings
from headroom.service.descriptions import documented
from headroom.service.errors import InvalidRequest
from headroom.service.fields import WHOLE_NUMBER
from headroom.service.schemas.requests import (
    MAX_SPEC_CHARS,
    ChosenNetwork,
    Query,
    Request,
    Text,
    check_query,
    too_many,
)
from headroom.service.schemas.responses import (
    AnsweringModel,
    AnsweringVariant,
    HeadAttention,
    HeadMaskInfo,
    Timing,
    Usage,
)

MAX_PAIRS = 20_000
"""Maximum pairs that one request may have scored, with all its shorter queries."""

MAX_QUERY_CHARS = 20_000

MAX_CHARS = 20_000_000
"""How many characters the queries of one request may have together. All of them are kept in memory, in 1 to 4
bytes per character, and writing them takes about a second."""


GENERATE: Literal["generate"] = "generate"

AnyMethod = Literal["greedy", "leave_one_out", "generate"]
"""The methods that choose words, and `generate`: one type, so that a wrong one is an error of `method`."""

_OF_CHOOSING = ("titles", "max_words", "max_loss")
_OF_GENERATE = ("beams", "heads")

_EITHER_METHOD: dict[str, Any] = {
    "oneOf": [
        {
            "title": "words of the query",
            "type": "object",
            "required": ["titles"],
            "properties": {
                "method": {"enum": list(METHODS)},
                "titles": {"type": "array"},
                **{name: {"type": "null"} for name in _OF_GENERATE},
            },
        },
        {
            "title": "a query that is written",
            "type": "object",
            "required": ["method"],
            "properties": {
                "method": {"const": GENERATE},
                **{name: {"type": "null"} for name in _OF_CHOOSING},
            },
        },
    ]
}
"""Titles and a method that chooses words, or the question alone and `generate`."""

DEFAULT_BEAMS = 4

MAX_QUESTION_CHARS = 4_000
"""Maximum characters of a question that a query is written for; a model's window holds far fewer."""


class CondenseRequest(ChosenNetwork, Request):
    """Shorten a query to the words that still find the same titles, or write the short query."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [_EITHER_METHOD],
            "examples": [
                {
                    "query": "where can i find a steel angle bracket for my deck",
                    "titles": ["Simpson Strong-Tie 12-Gauge Angle", "Wood deck screws"],
                    "max_words": 3,
                }
            ],
        }
    )

    query: Query
    """The verbose query; not blank. Words stand between spaces; Chinese text is split."""
    titles: Annotated[list[Text], Field(min_length=1, fail_fast=True)] | None = None
    """The query's candidates, whose relevance is to stay as it is; not with `generate`, which reads the
    question alone."""
    max_words: Annotated[int, Field(ge=1, le=10_000), WHOLE_NUMBER] | None = None
    """Maximum words of the shorter query. Without `max_loss`, it has exactly this many."""
    max_loss: Annotated[float, Field(ge=0, le=1)] | None = None
    """The largest loss: the shortest query within it is chosen. If neither this nor `max_words` is given:
    0.1."""
    method: AnyMethod = "greedy"
    """`greedy`: leave out one word after the other, each time the one whose loss is least. `leave_one_out`:
    in the order of the loss of each word alone, which is cheaper. `generate`: write the short query, also
    with words that the question does not have; needs a checkpoint with a query generator."""
    beams: Annotated[int, Field(ge=1, le=MAX_BEAMS), WHOLE_NUMBER] | None = None
    """Of `generate`: how many queries are kept in the search; 1: greedy. Default: 4."""
    heads: Annotated[str, Field(min_length=1, max_length=MAX_SPEC_CHARS)] | None = None
    """Of `generate`: heads of the encoder–decoder attention, such as `2.*`, whose maps of the best query over
    the question the answer has."""

    def check(self, settings: Settings) -> None:
        """Raise InvalidRequest, which names field and limit."""
        check_query(self.query, "query")
        if self.method == GENERATE:
            self._check_generate()
            return
        for name in _OF_GENERATE:
            if getattr(self, name) is not None:
                raise InvalidRequest(f"is of the method generate, not of {self.method}", param=name)
        if self.titles is None:
            raise InvalidRequest(
                f"must name the candidates, from 1 to {settings.max_pairs}; only generate does without",
                param="titles",
            )
        if len(self.titles) > settings.max_pairs:
            raise too_many(len(self.titles), "titles", settings)
        if len(self.query) > MAX_QUERY_CHARS:
            raise InvalidRequest(
                f"{len(self.query)} characters are more than the {MAX_QUERY_CHARS} of one query to condense",
                param="query",
            )
        words = count_words(self.query)
        titles = len(set(self.titles))
        queries = largest_cost(words, self.selection)
        characters = queries * len(self.query)
        if characters > MAX_CHARS:
            raise InvalidRequest(
                f"{words} words and {len(self.query)} characters make up to {characters} characters of "
                f"shorter queries with the method {self.method}; the limit is {MAX_CHARS}: send fewer words "
                "or shorter ones",
                param="query",
            )
        if queries * titles > MAX_PAIRS:
            max_titles = MAX_PAIRS // queries
            raise InvalidRequest(
                f"{words} words and {titles} titles are up to {queries * titles} pairs to score with the "
                f"method {self.method}; the limit is {MAX_PAIRS}: "
                + (f"send at most {max_titles} titles" if max_titles else "send fewer words"),
                param="titles" if max_titles else "query",
            )

    @property
    def selection(self) -> Method:
        """Return how words are chosen. For a request whose method is not generate."""
        assert self.method != GENERATE
        return self.method

    def _check_generate(self) -> None:
        for name in _OF_CHOOSING:
            if getattr(self, name) is not None:
                raise InvalidRequest(
                    "is for methods that choose words; generate reads the question alone", param=name
                )
        if len(self.query) > MAX_QUESTION_CHARS:
            raise InvalidRequest(
                f"{len(self.query)} characters are more than the {MAX_QUESTION_CHARS} of a question to write "
                "a query for",
                param="query",
            )


@documented
@dataclass(slots=True)
class WordOfQuery:
    """A word of the query, and whether the condensed query has it."""

    word: str
    """As it was typed."""
    form: str
    """As a shorter query has it: without punctuation around it and particle."""
    kept: bool
    """Whether the condensed query has it."""
    importance: float
    """The loss of the query without this word alone; 1 for the only word."""


@documented
@dataclass(slots=True)
class QueryOfLength:
    """The query of one length on the way from all words to one."""

    words: int
    """How many words it has."""
    query: str
    """The query of that length."""
    left_out: int | None
    """The index in `words` of the word that this length leaves out."""
    loss: float
    """The loss at this length."""
    measured: bool
    """False: the loss is estimated from the deletions of single words, which `leave_one_out` does for lengths
    that no bound on the loss made it measure."""


@documented
@dataclass(slots=True)
class CondenseResponse:
    """The shorter query, what each word is worth, and the loss at every length."""

    model: AnsweringModel
    variant: AnsweringVariant
    head_mask: HeadMaskInfo
    method: Method
    """How the words were chosen."""
    condensed: str
    """The shorter query."""
    loss: float
    """Of the condensed query: the mean Jensen–Shannon distance (base 2) between the titles' grade
    distributions under the whole and the shorter query, from 0 to 1."""
    words: list[WordOfQuery]
    """In the query's order."""
    path: list[QueryOfLength]
    """From all words to one."""
    note: str | None
    """What to know about the result: why the query is not shorter, or that the model cannot read all of
    it."""
    usage: Usage
    timing_ms: Timing


@documented
@dataclass(slots=True)
class WrittenQuery:
    """A query that was written for the question."""

    query: str
    """Its text."""
    score: float
    """The geometric mean of its pieces' probabilities times the fourth power of its relevance; 0 to 1."""


@documented
@dataclass(slots=True)
class QueryAttention:
    """The attention of each piece of the best query to the question."""

    question: list[str]
    """The question's tokens as people read them, with a space before the first one of a word."""
    pieces: list[str]
    """The query's pieces as people read them, with a space before the first one of a word."""
    heads: list[HeadAttention]
    """Encoder–decoder attention, a row for each piece and a column for each token of the question."""


@documented
@dataclass(slots=True)
class GenerateResponse:
    """The queries that were written, best first."""

    model: AnsweringModel
    variant: AnsweringVariant
    head_mask: HeadMaskInfo
    """Of the encoder."""
    generator_mask: str
    """The heads of the generator that are off, such as `decoder:0.1;cross:1.*`; `none` if all are on."""
    method: Literal["generate"]
    """That of the request."""
    condensed: str
    """The best query."""
    queries: list[WrittenQuery]
    """At most as many as beams, all different."""
    attention: QueryAttention | None
    """If the request names `heads`."""
    usage: Usage
    timing_ms: Timing
