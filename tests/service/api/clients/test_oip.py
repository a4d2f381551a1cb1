"""The Open Inference Protocol as KServe's and Triton's clients speak it, in JSON and in bytes."""

import struct
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson

from models import Classifier
from tests.checkpoints import GRADES, write_checkpoint
from tests.service.experimenting import config, score
from tests.service.in_process import QUERY, TITLES, Service, in_session, pairs, serve


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
async def test_wanted_outputs_come_in_their_order_and_form_with_the_id(shared: Service) -> None:
    wanted = [
        {"name": "grade", "parameters": {"binary_data": True}},
        {"name": "score", "parameters": {"binary_data": False}},
    ]
    answer = await shared.http.post(INFER, json={"id": "é-1", "inputs": INPUTS, "outputs": wanted})

    head = orjson.loads(answer.content[: int(answer.headers[LENGTH])])
    assert (head["id"], head["model_name"], head["model_version"]) == ("é-1", "full", "1")
    assert [output["name"] for output in head["outputs"]] == ["grade", "score"]
    assert ["data" in output for output in head["outputs"]] == [False, True]
    assert head["parameters"] == {"variant": "full", "truncated": 1}
    assert outputs_of(answer)["grade"].shape == (4,)


@in_session
async def test_queries_go_to_all_titles_or_one_by_one(shared: Service) -> None:
    queries, titles = [QUERY, "lamp"], ["steel angle", "wood lamp"]
    both = await infer(shared, inputs=[tensor("title", titles), tensor("query", queries, [2, 1])])
    for place in range(2):
        inputs = [tensor("query", [queries[place]]), tensor("title", [titles[place]], [1, 1])]
        alone = await infer(shared, inputs=inputs)
        np.testing.assert_allclose(alone["score"], both["score"][place : place + 1], atol=1e-6)
    nested = tensor("title", titles, [2, 1], data=[[title] for title in titles])
    same = await infer(shared, inputs=[tensor("query", queries), nested])
    assert same["score"].tolist() == both["score"].tolist()


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
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'experiments.db'}"
    async with serve(tiny_checkpoint, config(), database_url=url) as service:
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


@in_session
async def test_metadata_says_what_to_send_and_what_comes(shared: Service) -> None:
    metadata = (await shared.http.get("/v2/models/masked/versions/1")).json()

    assert (metadata["name"], metadata["versions"]) == ("masked", ["1"])
    assert metadata["inputs"] == [
        {"name": name, "datatype": "BYTES", "shape": [-1]} for name in ("query", "title")
    ]
    outputs = await infer(shared)
    for described in metadata["outputs"]:
        values = outputs[described["name"]]
        assert {"FP32": np.float32, "INT64": np.int64}[described["datatype"]] == values.dtype
        assert [-1, *values.shape[1:]] == described["shape"]
    assert metadata["outputs"][1]["shape"] == [-1, len(GRADES)]
    assert (await shared.http.get("/v2/models/masked/ready")).json() == {"name": "masked", "ready": True}
    assert "binary_tensor_data" in (await shared.http.get("/v2")).json()["extensions"]


async def test_a_one_label_model_has_a_score_and_no_grades(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, num_labels=1)
    expected = Classifier.load(checkpoint, "cpu", "float32").score(pairs()).score
    async with serve(checkpoint, {"variants": [{"name": "full"}]}) as single:
        outputs = await infer(single)
        metadata = (await single.http.get("/v2/models/full")).json()
        refused = await single.http.post(INFER, json={"inputs": INPUTS, "outputs": [{"name": "grade"}]})

    assert list(outputs) == ["score"] == [output["name"] for output in metadata["outputs"]]
    np.testing.assert_allclose(outputs["score"], expected, atol=1e-6)
    assert (refused.status_code, refused.json()) == (
        400,
        {"error": "outputs[0].name: a model with one label has no grade"},
    )


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
