"""What the Open Inference Protocol refuses, and how it says so."""

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.api import create_app
from service.config.settings import Settings
from service.errors import QueueFull
from service.observe.metrics import Metrics
from tests.service.api.clients.test_oip import INFER, INPUTS, LENGTH, tensor, with_bytes
from tests.service.asgi import client
from tests.service.fake_backend import FakeBackend
from tests.service.in_process import TITLES

APP = create_app(Settings(api_keys="alpha"), Metrics())
KEY = {"authorization": "Bearer alpha"}


async def answered(body: Any, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """The status and error of a request to a replica without a model."""
    APP.state.backend = FakeBackend()
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    async with client(APP) as http:
        answer = await http.post(INFER, content=content, headers=KEY | (headers or {}))
    error = answer.json()
    assert error.keys() == {"error"}, answer.text
    return answer.status_code, error["error"]


def titled(titles: list[str] = TITLES, shape: list[int] | None = None, **more: Any) -> dict[str, Any]:
    """A request whose second tensor is this one."""
    return {"inputs": [INPUTS[0], tensor("title", titles, shape, **more)]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"inputs": INPUTS[:1]}, "inputs: there is no tensor 'title'; send query and title"),
        ({"inputs": [*INPUTS, INPUTS[1]]}, "inputs[2]: is the second title"),
        (titled(datatype="FP32"), "inputs[1].datatype: should be 'BYTES'"),
        (titled(shape=[2, 2]), "inputs[1].shape: should be [n] or [n, 1], not [2, 2]"),
        (titled(shape=[1] * 1000), f"inputs[1].shape: should be [n] or [n, 1], not {str([1] * 1000)[:64]}…"),
        (titled(shape=[5]), "inputs[1].data: 4 elements do not fill the shape [5]"),
        (titled(data=None), "inputs[1].data: is missing; give the tensor's elements as strings"),
        (
            {"inputs": [tensor("query", ["a", "b"]), INPUTS[1]]},
            "query: 2 queries for 4 titles; send one query, or as many",
        ),
        (
            {"inputs": INPUTS, "outputs": [{"name": "embedding"}]},
            "outputs[0].name: should be 'score', 'probabilities' or 'grade'",
        ),
        (
            {"inputs": INPUTS, "outputs": [{"name": "grade", "parameters": {"classification": 2}}]},
            "outputs[0].parameters.classification: is not supported",
        ),
        (
            titled(parameters={"shared_memory_region": "a"}),
            "inputs[1].parameters.shared_memory_region: is not supported",
        ),
        (titled(["a"] * 1001), "title: 1001 are more than the 1000 of one request"),
        (
            {"inputs": INPUTS, "deadline_ms": 60_001},
            "deadline_ms: must be at most 60000, the request timeout",
        ),
        (
            {"inputs": INPUTS, "parameters": {"timeout": "9" * 400}},
            "parameters.timeout: should be less than or equal to 9007199254740991",
        ),
    ],
)
async def test_wrong_tensors_are_refused_by_name(body: dict[str, Any], message: str) -> None:
    assert await answered(body) == (400, message)


async def test_bytes_that_are_not_what_the_json_says_are_refused() -> None:
    body, headers = with_bytes(INPUTS)
    for changed, length, message in (
        (body, str(len(body) + 1), f"{LENGTH}: should be the bytes of the JSON, at most {len(body)}"),
        (body, "-1", f"{LENGTH}: should be the bytes of the JSON, at most {len(body)}"),
        (body, "0" * 20 + "9" * 30, f"{LENGTH}: should be the bytes of the JSON, at most {len(body)}"),
        (body, "0" * 20 + "9" * 4400, f"{LENGTH}: should be the bytes of the JSON, at most {len(body)}"),
        (body[:-1], headers[LENGTH], "inputs[1].parameters.binary_data_size: is more than the body holds"),
        (body + b"12", headers[LENGTH], "inputs: 2 bytes after the JSON belong to no input"),
    ):
        assert await answered(changed, headers | {LENGTH: length}) == (400, message)

    def raw(texts: bytes) -> tuple[bytes, dict[str, str]]:
        content, headers = with_bytes([INPUTS[0], tensor("title", ["1234"])])
        start = len(content) - 8
        return content[:start] + texts, headers

    for texts, message in (
        (b"\x09\x00\x00\x001234", "inputs[1]: its bytes end within an element"),
        (b"\x01\x00\x00\x0012\x00\x00", "inputs[1]: its bytes end within an element"),
        (b"\x04\x00\x00\x00\xff\xfe\xfd\xfc", "inputs[1]: should hold text in UTF-8"),
    ):
        assert await answered(*raw(texts)) == (400, message)
    status, _ = await answered(body, {"content-type": "application/octet-stream"})
    assert status == 415
    status, _ = await answered(b"{")
    assert status == 400


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    start=st.integers(0, 600),
    end=st.integers(0, 12),
    inserted=st.binary(max_size=6),
    length=st.none() | st.integers(0, 700),
)
async def test_mangled_tensors_are_refused_or_understood(
    start: int, end: int, inserted: bytes, length: int | None
) -> None:
    body, headers = with_bytes(INPUTS)
    mangled = body[:start] + inserted + body[start + end :]
    length_header = {} if length is None else {LENGTH: str(length)}
    APP.state.backend = FakeBackend()
    async with client(APP) as http:
        answer = await http.post(INFER, content=mangled, headers=KEY | headers | length_header)
    assert answer.status_code in (200, 400)
    assert answer.status_code == 200 or answer.json().keys() == {"error"}


async def test_its_own_timeout_a_full_queue_and_a_missing_key_are_told_in_the_protocols_shape() -> None:
    APP.state.backend = FakeBackend(hangs=True)
    async with client(APP) as http:
        for deadline in ({"parameters": {"timeout": 1_000}}, {"deadline_ms": 1}):
            async with asyncio.timeout(20):  # the server's own timeout comes after 60 s
                late = await http.post(INFER, json={"inputs": INPUTS, **deadline}, headers=KEY)
            assert (late.status_code, late.json().keys()) == (504, {"error"}), deadline
        APP.state.backend = FakeBackend(fails=QueueFull())
        full = await http.post(INFER, json={"inputs": INPUTS}, headers=KEY)
        assert (full.status_code, full.json()) == (429, {"error": str(QueueFull())})
        assert full.headers["retry-after"] == "1"
        for method, path in (("POST", INFER), ("GET", "/v2"), ("GET", "/v2/models/full/ready")):
            answer = await http.request(method, path)
            assert (answer.status_code, answer.json().keys()) == (401, {"error"})
        for path in ("/v2/repository/index", "/v2/", "/v2/models", "/v2/models/rerank"):
            unknown = await http.get(path, headers=KEY)
            assert (unknown.status_code, type(unknown.json()["error"])) == (404, str)
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert (await http.get(path)).status_code == 200
        APP.state.backend = None
        assert (await http.get("/v2/health/live")).json() == {"live": True}
        starting = await http.get("/v2/health/ready")
        assert (starting.status_code, starting.json()) == (503, {"error": "Not ready: starting."})
