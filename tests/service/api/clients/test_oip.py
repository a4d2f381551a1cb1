"""The Open Inference Protocol as KServe's and Triton's clients speak it, in JSON and in bytes."""

import asyncio
import struct
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headroom import Classifier
from tests.service.asgi import client
from tests.service.experimenting import config, score
from tests.service.fake_backend import FakeBackend, app_with
from tests.service.in_process import QUERY, TITLES, Service, in_session, pairs, serve

LENGTH = "inference-header-content-length"


INFER = "/v2/models/full/infer"


def tensor(name: str, texts: list[str], shape: list[int] | None = None, **more: Any) -> dict[str, Any]:
    shape = [len(texts)] if shape is None else shape
    return {"name": name, "datatype": "BYTES", "shape": shape, "data": texts} | more


INPUTS = [tensor("query", [QUERY]), tensor("title", TITLES)]


def with_bytes(inputs: list[dict[str, Any]], **fields: Any) -> tuple[bytes, dict[str, str]]:
    """A body whose tensors follow its JSON, and its headers."""
    described, buffers = [], []
    for each in inputs:
        texts = [text.encode() for text in each["data"]]
        buffers.append(b"".join(struct.pack("<I", len(text)) + text for text in texts))
        bare = {key: value for key, value in each.items() if key != "data"}
        described.append(bare | {"parameters": {"binary_data_size": len(buffers[-1])}})
    head = orjson.dumps({"inputs": described, **fields})
    headers = {LENGTH: str(len(head)), "content-type": "application/octet-stream"}
    return head + b"".join(buffers), headers


def outputs_of(answer: httpx.Response) -> dict[str, np.ndarray]:
    """The outputs of an answer, from JSON or bytes."""
    size = int(answer.headers.get(LENGTH, len(answer.content)))
    rest = answer.content[size:]
    outputs = {}
    for output in orjson.loads(answer.content[:size])["outputs"]:
        kind = {"FP32": np.float32, "INT64": np.int64}[output["datatype"]]
        if "data" in output:
            values = np.array(output["data"], kind)
        else:
            count = output["parameters"]["binary_data_size"]
            values, rest = np.frombuffer(rest[:count], kind), rest[count:]
        outputs[output["name"]] = values.reshape(output["shape"])
    assert not rest
    return outputs


async def infer(service: Service, model: str = "full", **body: Any) -> dict[str, np.ndarray]:
    answer = await service.http.post(f"/v2/models/{model}/infer", json={"inputs": INPUTS} | body)
    assert answer.status_code == 200, answer.text
    return outputs_of(answer)


@in_session
async def test_outputs_are_those_of_the_network_in_json_and_in_bytes(
    shared: Service, clf: Classifier
) -> None:
    scores = clf.score(pairs())
    body, headers = with_bytes(INPUTS)
    wanted_binary, wanted_headers = with_bytes(INPUTS, parameters={"binary_data_output": True})
    answers = [
        await shared.http.post(INFER, json={"inputs": INPUTS}),
        await shared.http.post(INFER, content=body, headers=headers),
        await shared.http.post(INFER, content=wanted_binary, headers=wanted_headers),
        await shared.http.post(INFER, json={"inputs": INPUTS, "parameters": {"binary_data_output": True}}),
    ]
    for answer, binary in zip(answers, (False, False, True, True), strict=True):
        outputs = outputs_of(answer)
        assert list(outputs) == ["score", "probabilities", "grade"]
        assert (LENGTH in answer.headers) == binary
        np.testing.assert_allclose(outputs["score"], scores.score, atol=1e-6)
        np.testing.assert_allclose(outputs["probabilities"], scores.probabilities, atol=1e-6)
        assert outputs["grade"].tolist() == scores.grade.tolist()
        assert answer.headers["x-config-version"]


@in_session
async def test_a_model_is_a_checkpoint_a_variant_or_both(shared: Service, clf: Classifier) -> None:
    full, masked = await infer(shared), await infer(shared, "masked")
    assert masked["score"].tolist() != full["score"].tolist()

    for model, parameters, expected in (
        (clf.name, {}, full),
        (f"{clf.name}@masked", {}, masked),
        (f"{clf.name}%40masked/versions/1", {}, masked),
        (clf.name, {"variant": "masked"}, masked),
        ("full", {"head_mask": "1.0-2", "unit": "user-1"}, masked),
    ):
        outputs = await infer(shared, model, parameters=parameters)
        assert outputs["score"].tolist() == expected["score"].tolist(), model
    for fields in (
        {"variant": "masked"},
        {"head_mask": "1.0-2", "unit": "user-1", "deadline_ms": 60_000},
        {"variant": "full", "parameters": {"variant": "masked", "timeout": 50_000_000}},
    ):
        outputs = await infer(shared, clf.name, **fields)
        assert outputs["score"].tolist() == masked["score"].tolist(), fields
    for model in ("nope", f"{clf.name}@nope", "full@masked", "full/versions/2"):
        for path in (f"/v2/models/{model}", f"/v2/models/{model}/ready"):
            answer = await shared.http.get(path)
            assert answer.status_code == 404
            assert answer.json()["error"].startswith(
                f"There is no model '{model}'; there are {clf.name}@full"
            )


async def test_a_unit_beside_the_tensors_or_among_the_parameters_is_assigned(
    tiny_checkpoint: Path, database_url: str
) -> None:
    async with serve(tiny_checkpoint, config(), database_url=database_url) as service:
        model = service.replica.models().models[0].name
        arms = {f"user-{number}": await score(service, f"user-{number}") for number in range(20)}
        unit = {"unit": next(unit for unit, answer in arms.items() if answer["variant"] == "cut")}
        for fields, variant in (
            ({}, "full"),
            (unit, "cut"),
            ({"parameters": unit}, "cut"),
        ):
            answer = await service.http.post(f"/v2/models/{model}/infer", json={"inputs": INPUTS} | fields)
            assert answer.json()["parameters"]["variant"] == variant, fields


KEY = {"authorization": "Bearer alpha"}


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
    async with client(app_with(api_keys="alpha")) as http:
        answer = await http.post(INFER, content=mangled, headers=KEY | headers | length_header)
    assert answer.status_code in (200, 400)
    assert answer.status_code == 200 or answer.json().keys() == {"error"}


async def test_its_own_timeout_an_unknown_path_and_a_start_are_told_in_the_protocols_shape() -> None:
    app = app_with(FakeBackend(hangs=True), api_keys="alpha")
    async with client(app) as http:
        for deadline in ({"parameters": {"timeout": 1_000}}, {"deadline_ms": 1}):
            async with asyncio.timeout(20):  # the server's own timeout comes after 60 s
                late = await http.post(INFER, json={"inputs": INPUTS, **deadline}, headers=KEY)
            assert (late.status_code, late.json().keys()) == (504, {"error"}), deadline
        for path in ("/v2/repository/index", "/v2/models", "/v2/models/rerank"):
            unknown = await http.get(path, headers=KEY)
            assert (unknown.status_code, type(unknown.json()["error"])) == (404, str)
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert (await http.get(path)).status_code == 200
        app.state.backend = None
        assert (await http.get("/v2/health/live")).json() == {"live": True}
        starting = await http.get("/v2/health/ready")
        assert (starting.status_code, starting.json()) == (503, {"error": "Not ready: starting."})
