"""What `/openapi.json` promises to people and to generators of clients, and that its examples work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headroom import Classifier, HeadMask
from headroom.models.checkpoint.hub import DEFAULT
from tests.clients.environments import run
from tests.service.experimenting import BOSS, KEYS, config
from tests.service.fake_backend import document
from tests.service.in_process import serve
from tests.service.running import Server


def test_every_field_and_every_parameter_is_described() -> None:
    schemas = document()["components"]["schemas"]
    silent = [name for name, schema in schemas.items() if not schema.get("description")]
    for name, schema in schemas.items():
        for field, value in schema.get("properties", {}).items():
            target = schemas[value["$ref"].rpartition("/")[2]] if "$ref" in value else {}
            if not (value.get("description") or target.get("description")):
                silent.append(f"{name}.{field}")
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], (method, path)
            silent += [
                f"{method} {path} {parameter['name']}"
                for parameter in operation.get("parameters", ())
                if not parameter.get("description")
            ]
    assert silent == []


OPERATION_IDS = {
    *("score", "compare", "attention", "condense", "models", "variants", "masks", "outcomes"),
    *("experiments", "experiment", "ramp", "stop", "ship", "rollback", "ofrep_flag"),
    *("live", "ready", "metrics"),
}


def examples(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[Any]:
    """The bodies that an operation shows; one None for an operation without a body."""
    if "requestBody" not in operation:
        yield None
        return
    media = operation["requestBody"]["content"]["application/json"]
    schema = media["schema"]
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    shown = [example["value"] for example in media.get("examples", {}).values()]
    shown += [media["example"]] if "example" in media else []
    shown += schema.get("examples", [])
    assert shown, f"{operation['operationId']} shows no request"
    yield from shown


def address(path: str, operation: dict[str, Any]) -> str:
    """The path with the example of each of its parameters."""
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            shown = parameter.get("example", next(iter(parameter["schema"].get("examples", ())), None))
            assert shown is not None, f"{path} shows no {parameter['name']}"
            path = path.replace(f"{{{parameter['name']}}}", str(shown))
    return path


async def test_every_example_is_answered_as_documented(database_url: str) -> None:
    """The client checks each answer's body against the document."""
    live = config([{"name": "full"}, {"name": "pruned20", "head_mask": "@pruned20", "sliced": True}])
    async with serve(DEFAULT, live, api_keys=KEYS, database_url=database_url) as service:
        shown_document = (await service.http.get("/openapi.json", headers=BOSS)).json()
        sent = 0
        for path, operations in shown_document["paths"].items():
            for method, operation in operations.items():
                for body in examples(shown_document, operation):
                    answer = await service.http.request(
                        method, address(path, operation), json=body, headers=BOSS
                    )
                    (success,) = {"200", "201", "204"} & operation["responses"].keys()
                    assert answer.status_code == int(success), (path, body, answer.text)
                    sent += 1
                    for kind in operation["responses"][success].get("content", ()):
                        assert answer.headers["content-type"].startswith(kind), path
    assert sent > len(shown_document["paths"])


@pytest.mark.more
def test_a_generated_client_scores_a_pair_and_reads_an_error(
    server: Server, clf: Classifier, tmp_path: Path
) -> None:
    # It fails if the generator warns about anything in the document.
    client = run("openapi", "generated.py", url=server.url, directory=str(tmp_path))

    assert set(client["operations"]) >= OPERATION_IDS
    pair = [("angle bracket", "steel bracket")]
    for case, spec in (("score", "none"), ("pairs", "2.0")):
        expected = clf.score(pair, HeadMask.parse(spec, layers=3, heads=4))
        assert client[case] == {
            "type": "ScoreResponse",
            "score": pytest.approx(float(expected.score[0]), abs=0.02),
            "label": clf.grades[expected.grade[0]],
            "mask": spec,
        }
    assert client["error"] == {"type": "Error", "kind": "invalid_request", "param": "variant"}
