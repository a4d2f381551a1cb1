"""The error tree: what a caller is told, and what never."""

import pickle

import orjson
import pytest

from headroom.models.errors import UnsupportedCheckpoint
from headroom.service import errors
from headroom.service.errors import ServiceError, to_response

TABLE = [
    (errors.InvalidJSON(), 400, "invalid_json"),
    (errors.InvalidHTTP(), 400, "invalid_http"),
    (errors.InvalidRequest("is missing", param="titles"), 422, "invalid_request"),
    (errors.Unauthorized(), 401, "unauthorized"),
    (errors.Forbidden(), 403, "forbidden"),
    (errors.NotFound(), 404, "not_found"),
    (errors.MethodNotAllowed(), 405, "method_not_allowed"),
    (errors.RequestTimeout(), 408, "request_timeout"),
    (errors.Conflict(), 409, "conflict"),
    (errors.BodyTooLarge(), 413, "body_too_large"),
    (errors.UnsupportedMediaType(), 415, "unsupported_media_type"),
    (errors.QueueFull(2.5), 429, "queue_full"),
    (errors.RateLimited(0.2), 429, "rate_limited"),
    (errors.NotImplementedHTTP(), 501, "not_implemented"),
    (errors.ClientDisconnected(), 499, "client_disconnected"),
    (errors.InternalError(), 500, "internal_error"),
    (errors.InferenceFailed(), 500, "internal_error"),
    (errors.EmptyRequest(), 400, "empty_request"),
    (errors.TargetingKeyMissing(), 400, "targeting_key_missing"),
    (errors.Starting(), 503, "starting"),
    (errors.NotReady("draining"), 503, "not_ready"),
    (errors.Draining(), 503, "draining"),
    (errors.ReplicaLost(), 503, "replica_lost"),
    (errors.DeviceFailed("cuda"), 503, "device_failed"),
    (errors.DatabaseUnavailable(), 503, "database_unavailable"),
    (errors.OutOfMemory(), 503, "out_of_memory"),
    (errors.DeadlineExceeded(), 504, "deadline_exceeded"),
]


@pytest.mark.parametrize(("error", "status", "kind"), TABLE, ids=[kind for *_, kind in TABLE])
def test_every_failure_has_its_status_type_and_a_sentence(
    error: ServiceError, status: int, kind: str
) -> None:
    response = to_response(error)
    assert response.status == status
    assert set(response.body) == {"error"}
    assert list(response.body["error"]) == ["type", "message", "param"]
    assert response.body["error"]["type"] == kind
    assert response.body["error"]["message"]
    orjson.dumps(response.body)
    assert ("retry-after" in response.headers) == (status in (429, 503))
    again = pickle.loads(pickle.dumps(error))  # as on the way between processes
    assert type(again) is type(error)
    assert to_response(again) == response


def test_the_table_is_the_whole_tree() -> None:
    def leaves(kind: type[ServiceError]) -> set[type[ServiceError]]:
        below = kind.__subclasses__()
        return set().union(*map(leaves, below)) if below else {kind}

    assert leaves(ServiceError) == {type(error) for error, *_ in TABLE}


def test_an_unknown_exception_tells_nothing_of_itself() -> None:
    response = to_response(RuntimeError("/secret/path: password=hunter2"))
    assert response.status == 500
    assert "hunter2" not in str(response)
    assert to_response(UnsupportedCheckpoint("/models/private is not a BERT")).status == 500


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (2.1, "3"), (float("inf"), "3600")]
)
def test_retry_after_is_whole_seconds_and_never_none_at_all(seconds: float, header: str) -> None:
    assert to_response(errors.QueueFull(seconds)).headers["retry-after"] == header
