"""A wrong request of another server's client is refused in that client's words and with its status."""

from typing import Any

import pytest

from tests.service.asgi import client
from tests.service.fake_backend import app_with

PAIR: dict[str, Any] = {"query": "a", "documents": ["a", "b"]}
INFER = "/v2/models/full/infer"


def tensor(name: str, count: int, shape: list[int] | None = None, **more: Any) -> dict[str, Any]:
    """Return an input of so many texts."""
    shape = [count] if shape is None else shape
    return {"name": name, "datatype": "BYTES", "shape": shape, "data": ["a"] * count} | more


def tensors(*inputs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"inputs": list(inputs), **fields}


QUERY = tensor("query", 1)
TITLES = tensor("title", 4)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/rerank", PAIR | {"documents": ["a", 3]}, 400, "documents[1]: should be a string"),
        ("/v2/rerank", PAIR | {"max_tokens_per_doc": -1}, 400, "max_tokens_per_doc: should be greater than"),
        ("/rerank", PAIR | {"model": "any@nobody"}, 400, "model: there is no such variant; there is full"),
        ("/v1/rerank", PAIR | {"model": "any@full", "variant": "other"}, 400, "model: "),
        ("/", {"query": "a", "texts": []}, 400, "texts: must not be empty"),
        ("/rerank", {"query": " ", "texts": ["a"]}, 422, "query: must not be blank"),
        ("/", {"query": "a", "texts": ["b"] * 1001}, 422, "texts: 1001 are more than the 1000 of one"),
        ("/predict", {"inputs": [["a", "b", "c"]]}, 422, "inputs: should be a text, a pair of texts, or a"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, 422, "text_1: 2 queries for 1 titles; send one"),
        ("/score", {"text_1": ["a", " "], "text_2": ["c", "d"]}, 422, "text_1[1]: must not be blank"),
        ("/v1/score", {"text_1": "a", "text_2": "c", "model": "x@nope"}, 422, "model: there is no such"),
        (INFER, tensors(QUERY), 400, "inputs: there is no tensor 'title'; send query and title"),
        (INFER, tensors(QUERY, tensor("title", 4, [2, 2])), 400, "inputs[1].shape: should be [n] or [n, 1]"),
        (
            *(INFER, tensors(QUERY, TITLES, outputs=[{"name": "embedding"}]), 400),
            "outputs[0].name: should be 'score', 'probabilities' or 'grade'",
        ),
        (
            *(INFER, tensors(QUERY, tensor("title", 4, parameters={"shared_memory_region": "a"})), 400),
            "inputs[1].parameters.shared_memory_region: is not supported",
        ),
        (
            *(INFER, tensors(QUERY, TITLES, parameters={"timeout": "9" * 400}), 400),
            "parameters.timeout: should be less than or equal to 9007199254740991",
        ),
    ],
)
async def test_a_wrong_request_is_refused_in_the_words_of_its_client(
    path: str, body: dict[str, Any], status: int, message: str
) -> None:
    async with client(app_with()) as http:
        answer = await http.post(path, json=body)
    error = answer.json()["error"]
    assert answer.status_code == status, answer.text
    assert (error if isinstance(error, str) else error["message"]).startswith(message)
    assert isinstance(error, str) or error["param"] == message.partition(":")[0]
