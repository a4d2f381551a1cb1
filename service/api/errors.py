"""Answers to failed requests: in the shape that a client reads, and in one sentence that names the field.

`headroom.service.errors.to_response` says what each error is: status, type, sentence and headers. An
`ErrorShape` rewrites that answer into what a client's library reads. The path decides, so that an error which
is raised before any route (no API key, no such path), or by Ray Serve itself, has the shape too. A route that
serves several kinds of clients chooses another one with `use_shape`.
"""

import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import orjson
from fastapi import Response

from headroom.service.descriptions import documented
from headroom.service.errors import (
    EmptyRequest,
    ErrorResponse,
    InferenceFailed,
    InvalidJSON,
    InvalidRequest,
    NotFound,
    ServiceError,
    TargetingKeyMissing,
    as_service_error,
    to_response,
)
from headroom.service.schemas.responses import Error, ErrorDetail
from headroom.service.sentences import IN_JSON, place_of, shortened

STATUSES = (400, 401, 403, 408, 413, 415, 429, 500, 503, 504)
"""The statuses of errors of a scoring route that answers wrong fields with 400."""
_CHOSEN = "error_shape"


class ErrorShape(NamedTuple):
    """The errors of some clients.

    write: rewrites our answer. model: the type of the bodies. statuses: those that they may have.
    """

    write: Callable[[ServiceError, ErrorResponse], ErrorResponse]
    model: type[Any]
    statuses: tuple[int, ...]


@documented
@dataclass(slots=True)
class RerankError:
    """An error of a rerank route: the same sentence wherever a client looks for it."""

    message: str
    """One sentence; for Cohere's client."""
    detail: str
    """The same; for LlamaIndex, Haystack and Voyage's client."""
    error: ErrorDetail
    """As in the errors of /v1."""


@documented
@dataclass(slots=True)
class TeiError:
    """An error of text-embeddings-inference."""

    error: str
    """One sentence; for people."""
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]
    """For programs."""


@documented
@dataclass(slots=True)
class OipError:
    """An error of the Open Inference Protocol, or as Weaviate's module reads it."""

    error: str
    """One sentence."""


@documented
@dataclass(slots=True)
class OfrepError:
    """An error of OpenFeature's remote evaluation."""

    key: str
    """The flag that was asked for."""
    errorCode: Literal[  # noqa: N815 - the protocol's name
        "FLAG_NOT_FOUND", "TARGETING_KEY_MISSING", "INVALID_CONTEXT", "PARSE_ERROR", "GENERAL"
    ]
    """For programs."""
    errorDetails: str  # noqa: N815 - the protocol's name
    """One sentence; for people."""


@documented
@dataclass(slots=True)
class OfrepBulkError:
    """An error of OpenFeature's remote evaluation of all flags at once."""

    errorCode: Literal[  # noqa: N815 - the protocol's name
        "TARGETING_KEY_MISSING", "INVALID_CONTEXT", "PARSE_ERROR", "GENERAL"
    ]
    """For programs."""
    errorDetails: str  # noqa: N815 - the protocol's name
    """One sentence; for people."""


def _rerank(error: ServiceError, answer: ErrorResponse) -> ErrorResponse:
    """Write one answer for all rerank clients; wrong fields get 400, as from their servers.

    Cohere's client shows `message`; LangChain, LlamaIndex, Haystack and Voyage's client read `detail`, and
    vLLM's and Infinity's `error.message`.
    """
    status = 400 if error.status == InvalidRequest.status else answer.status
    return ErrorResponse(
        status, {"message": error.message, "detail": error.message, **answer.body}, answer.headers
    )


_TEI = {429: "Overloaded", 503: "Unhealthy", 504: "Overloaded"}
"""TEI's type of errors; it has none for the other statuses, so what the caller did is "Validation"."""


def _tei(error: ServiceError, answer: ErrorResponse) -> ErrorResponse:
    """Write an answer with the type and the status of text-embeddings-inference 1.9."""
    status = 424 if isinstance(error, InferenceFailed) else answer.status
    kind = _TEI.get(status, "Validation" if status < 424 else "Backend")
    if isinstance(error, EmptyRequest):
        kind = "Empty"
    return ErrorResponse(status, {"error": error.message, "error_type": kind}, answer.headers)


def _oip(error: ServiceError, answer: ErrorResponse) -> ErrorResponse:
    """Write an answer as the Open Inference Protocol and Weaviate have it; wrong fields get 400."""
    status = 400 if error.status == InvalidRequest.status else answer.status
    return ErrorResponse(status, {"error": error.message}, answer.headers)


_OFREP_CODES: tuple[tuple[type[ServiceError], str], ...] = (
    (NotFound, "FLAG_NOT_FOUND"),
    (TargetingKeyMissing, "TARGETING_KEY_MISSING"),
    (InvalidJSON, "PARSE_ERROR"),
    (InvalidRequest, "INVALID_CONTEXT"),
)


def _ofrep(error: ServiceError, answer: ErrorResponse, key: str | None = None) -> ErrorResponse:
    """Write an answer as OpenFeature's remote evaluation protocol says; wrong fields get 400.

    key: the flag; None: all were asked for.
    """
    status = 400 if error.status == InvalidRequest.status else answer.status
    code = next((code for kind, code in _OFREP_CODES if isinstance(error, kind)), "GENERAL")
    flag = {} if key is None else {"key": key}
    return ErrorResponse(status, {**flag, "errorCode": code, "errorDetails": error.message}, answer.headers)


OURS = ErrorShape(lambda _, answer: answer, Error, (*STATUSES, 422))
RERANK = ErrorShape(_rerank, RerankError, STATUSES)
TEI = ErrorShape(_tei, TeiError, (*STATUSES, 422, 424))
OIP = ErrorShape(_oip, OipError, STATUSES)
WEAVIATE = OIP
OFREP = ErrorShape(_ofrep, OfrepError, (*STATUSES, 404))
OFREP_BULK = ErrorShape(_ofrep, OfrepBulkError, STATUSES)
_FLAG_PATH = re.compile(r"/ofrep/v1/evaluate/flags/(.+)", re.DOTALL)
_BY_PATH: tuple[tuple[re.Pattern[str], ErrorShape], ...] = (
    # Also where a client's base URL is wrong: /v1/v2/rerank.
    (re.compile(r"(?!/v2/models/).*/rerank(ing)?/?"), RERANK),
    (re.compile(r"/|/(predict|info|health|ping)/?"), TEI),
    (re.compile(r"/v2(/.*)?"), OIP),
    (re.compile(r"/ofrep/v1/evaluate/flags/?"), OFREP_BULK),
)


def shape_of(path: str, method: str) -> ErrorShape:
    """Return the shape of errors under a path."""
    if path == "/" and method != "POST":  # our page
        return OURS
    if (flag := _FLAG_PATH.fullmatch(path)) is not None:
        return OFREP._replace(write=partial(_ofrep, key=flag[1]))
    return next((shape for pattern, shape in _BY_PATH if pattern.fullmatch(path)), OURS)


def use_shape(scope: MutableMapping[str, Any], shape: ErrorShape) -> None:
    """Let the errors of this request leave in another shape than its path's."""
    scope["state"][_CHOSEN] = shape


def to_shaped_response(error: BaseException, scope: Mapping[str, Any]) -> ErrorResponse:
    """Return the HTTP answer for any exception of a request, in the shape that its client reads."""
    method = scope.get("method", "GET")
    shape = scope.get("state", {}).get(_CHOSEN) or shape_of(scope["path"], method)
    if shape is RERANK and _is_from_weaviate(scope):
        shape = WEAVIATE
    answer: ErrorResponse = shape.write(as_service_error(error), to_response(error))
    return answer


def _is_from_weaviate(scope: Mapping[str, Any]) -> bool:
    """Return whether this is Weaviate's request: at its path, no other client sends no Content-Type."""
    is_typed = any(name.lower() == b"content-type" for name, _ in scope["headers"])
    return scope["path"].strip("/") == "rerank" and scope.get("method") == "POST" and not is_typed


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer as JSON, from plain objects, dataclasses and numpy rows."""
    content = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, status, headers, media_type="application/json")


def error_response(error: BaseException, scope: Mapping[str, Any]) -> Response:
    """Return the answer for a failure of a request."""
    reply = to_shaped_response(error, scope)
    return json_response(reply.body, status=reply.status, headers=reply.headers)


_SUBJECT = re.compile(r"^(Input|Value|String|List|Tuple|Dictionary) should ")
_MAX_SENTENCE_CHARS = 200
_FIELD = re.compile(r"[a-z_]+(\[\d+\])?(\.[a-z_]+)?")


def to_invalid_request(errors: Sequence[Any]) -> InvalidRequest:
    """Return an InvalidRequest for the first of pydantic's errors; its message does not repeat the input."""
    first = errors[0]
    path = list(first["loc"])
    if first["type"] == "value_error":  # of a check over several fields, which names the field
        sentence = str(first["msg"]).removeprefix("Value error, ")
        field, _, rest = sentence.partition(": ")
        if rest and _FIELD.fullmatch(field):
            path.append(field)
            sentence = rest
    elif not path:
        return InvalidRequest("The body should be a JSON object.")
    else:
        sentence = IN_JSON.get(first["type"]) or _SUBJECT.sub("should ", str(first["msg"]))
        sentence = sentence.partition(" after validation")[0]
    return InvalidRequest(shortened(sentence, _MAX_SENTENCE_CHARS), param=place_of(path) or None)
