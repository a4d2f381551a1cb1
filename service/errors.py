"""The errors that a request can end with, in one tree, and the function that makes an HTTP answer of each.

The proxy's pages and the errors of the OpenAPI document are generated from here. The body of an error is
`{"error": {"type", "message", "param"}}`; `type` is stable and meant for programs, `message` is one sentence
for a person, `param` names the field at fault (`titles[3]`) or is null.
"""

import copyreg
import math
from typing import Any, ClassVar, Literal, NamedTuple

from headroom.models.errors import InvalidMask

ShedReason = Literal["queue_full", "deadline", "disconnect", "draining", "rate"]

_MAX_RETRY_S = 3600.0


class ServiceError(Exception):
    """A failure with an HTTP status. `str(error)` is the message that the caller sees.

    message: one sentence; by default the class's `default`. param: the request field at fault, or None.
    retry_after: seconds after which trying again makes sense; becomes `Retry-After`.
    unread: whether the rest of the request's body has not been received.
    If `shed` is set, the request counts in `headroom_shed_total{reason=shed}`: once, when it is answered.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_error"
    shed: ClassVar[ShedReason | None] = None
    default: ClassVar[str] = "The server failed to answer this request."
    unread: bool = False

    def __init__(
        self, message: str | None = None, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(self.default if message is None else message)
        self.param = param
        self.retry_after = retry_after

    @property
    def message(self) -> str:
        """Return the sentence that the caller sees."""
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickled without its constructor, whose arguments are not those of Exception.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class InternalError(ServiceError):
    """A defect of the server. The cause goes to the log, never to the caller."""


class InferenceFailed(ServiceError):
    """The network gave no finite score.

    It is an internal error (500) everywhere except in TEI's shape, which answers 424.
    """

    default = "The model gave no finite score for this pair."


class InvalidJSON(ServiceError):
    """The body is not strict JSON: wrong syntax, duplicate keys, NaN, lone surrogates, or too deep."""

    status = 400
    type = "invalid_json"
    default = "The body is not valid JSON."


class InvalidHTTP(ServiceError):
    """The proxy cannot parse the request, which therefore never reaches a replica."""

    status = 400
    type = "invalid_http"
    default = "Not valid HTTP, no Host, or headers too large."


class InvalidRequest(ServiceError):
    """Well-formed JSON with wrong content; if `param` names a field, the message starts with it."""

    status = 422
    type = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message if param is None else f"{param}: {message}", param=param)


class EmptyRequest(ServiceError):
    """A list of texts is empty, in the one shape that tells this from other wrong content."""

    status = 400
    type = "empty_request"
    default = "There are no texts to score."


class TargetingKeyMissing(ServiceError):
    """A flag is asked for without a unit, in the one shape that tells this from other wrong content."""

    status = 400
    type = "targeting_key_missing"
    default = "context.targetingKey: is missing; it says whose arm is asked for"


class Unauthorized(ServiceError):
    status = 401
    type = "unauthorized"
    default = "Send a valid API key as `Authorization: Bearer KEY`."


class Forbidden(ServiceError):
    status = 403
    type = "forbidden"
    default = "This needs an API key with the admin role."


class NotFound(ServiceError):
    status = 404
    type = "not_found"
    default = "There is nothing at this path; see /docs for what there is."


class MethodNotAllowed(ServiceError):
    status = 405
    type = "method_not_allowed"
    default = "This path does not take this method."


class Conflict(ServiceError):
    status = 409
    type = "conflict"
    default = "The current state does not allow this."


class RequestTimeout(ServiceError):
    status = 408
    type = "request_timeout"
    default = "The body was not received in time."


class BodyTooLarge(ServiceError):
    """The body is over the size limit."""

    status = 413
    type = "body_too_large"
    default = "The body is too large."

    def __init__(self, message: str | None = None, *, unread: bool = False) -> None:
        super().__init__(message)
        self.unread = unread


class UnsupportedMediaType(ServiceError):
    status = 415
    type = "unsupported_media_type"
    default = "Send the body as application/json."


class NotImplementedHTTP(ServiceError):
    status = 501
    type = "not_implemented"
    default = "This transfer encoding or method is not supported."


class ClientDisconnected(ServiceError):
    """The client hung up before its answer was ready. Nobody reads this answer; the metrics count it."""

    status = 499
    type = "client_disconnected"
    shed = "disconnect"
    default = "The client closed the connection."


class TryAgain(ServiceError):
    """A refusal that a later attempt may escape."""

    def __init__(self, retry_after: float = 1.0, *, message: str | None = None) -> None:
        super().__init__(message, retry_after=retry_after)


class QueueFull(TryAgain):
    status = 429
    type = "queue_full"
    shed = "queue_full"
    default = "The queue is full; try again later."


class RateLimited(TryAgain):
    status = 429
    type = "rate_limited"
    shed = "rate"
    default = "This API key's rate is used up; try again later."


class Unavailable(TryAgain):
    """The service cannot take work now, but probably soon: 503 with Retry-After."""

    status = 503
    type = "unavailable"
    default = "The service is not available; try again later."


class Starting(Unavailable):
    type = "starting"
    default = "The service is starting; try again in a few seconds."

    def __init__(self) -> None:
        super().__init__(retry_after=2.0)


class NotReady(Unavailable):
    """The answer of `/health/ready` while the replica starts, drains or has lost its device."""

    type = "not_ready"

    def __init__(self, reason: str) -> None:
        super().__init__(message=f"Not ready: {reason}.")


class Draining(Unavailable):
    type = "draining"
    shed = "draining"
    default = "This replica is shutting down; try again."

    def __init__(self) -> None:
        super().__init__(retry_after=5.0)


class ReplicaLost(Unavailable):
    type = "replica_lost"
    default = "The replica that held this request was lost; try again."


class DeviceFailed(Unavailable):
    """The accelerator (or its runtime) failed. `kind` is a short fixed word, used as a metric label."""

    type = "device_failed"
    default = "The device that scores failed; try again later."

    def __init__(self, kind: str = "error") -> None:
        super().__init__(retry_after=5.0)
        self.kind = kind


class DatabaseUnavailable(Unavailable):
    type = "database_unavailable"
    default = "The experiments' database cannot be reached; try again later."


class OutOfMemory(Unavailable):
    type = "out_of_memory"
    default = "The device ran out of memory for this request; try again, or send fewer or shorter titles."


class DeadlineExceeded(ServiceError):
    status = 504
    type = "deadline_exceeded"
    shed = "deadline"
    default = "The deadline passed before the answer was ready."


class ErrorResponse(NamedTuple):
    """The HTTP answer for a failure: status, JSON body as plain objects, and extra headers."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


def as_service_error(error: BaseException) -> ServiceError:
    """Return the member of the tree that an exception counts as; an unknown one is an InternalError."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, InvalidMask):
        return InvalidRequest(str(error), param="head_mask")
    return InternalError()


def to_response(error: BaseException) -> ErrorResponse:
    """Return the HTTP answer for any exception. The text of an unknown exception is not shown."""
    known = as_service_error(error)
    body = {"error": {"type": known.type, "message": known.message, "param": known.param}}
    headers: dict[str, str] = {}
    if known.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(min(known.retry_after, _MAX_RETRY_S))))
    if known.unread or isinstance(known, RequestTimeout | BodyTooLarge):
        headers["connection"] = "close"  # so that the client does not send the rest of the body
    if isinstance(known, Unauthorized):
        headers["www-authenticate"] = 'Bearer realm="headroom"'
    return ErrorResponse(known.status, body, headers)
