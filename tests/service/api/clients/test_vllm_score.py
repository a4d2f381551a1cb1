"""vLLM's score requests, at /score and beside our own at /v1/score."""

from typing import Any

import numpy as np
import pytest

from headroom import Classifier
from tests.service.asgi import client
from tests.service.fake_backend import app_with
from tests.service.in_process import QUERY, TITLES, Service, in_session

APP = app_with()
PATHS = ("/score", "/v1/score")


@in_session
async def test_one_to_one_one_to_many_and_pair_by_pair(shared: Service, clf: Classifier) -> None:
    queries = ["lamp", QUERY, "steel", "a"]
    for first, second, pairs in (
        (QUERY, TITLES[0], [(QUERY, TITLES[0])]),
        (QUERY, TITLES, [(QUERY, title) for title in TITLES]),
        ([QUERY], TITLES, [(QUERY, title) for title in TITLES]),
        (queries, TITLES, list(zip(queries, TITLES, strict=True))),
    ):
        scores = clf.score(pairs)
        for path in PATHS:
            for names in (("text_1", "text_2"), ("queries", "documents")):
                answer = await shared.post(path, **dict(zip(names, (first, second), strict=True)))
                assert [each["index"] for each in answer["data"]] == list(range(len(pairs)))
                assert {each["object"] for each in answer["data"]} == {"score"}
                np.testing.assert_allclose(
                    [each["score"] for each in answer["data"]], scores.score, atol=1e-6
                )
                assert answer["object"] == "list"
                assert answer["model"] == f"{clf.name}@full"
                assert answer["usage"]["total_tokens"] == sum(map(len, clf.tokenizer.encode(pairs)))


@in_session
async def test_a_request_of_ours_stays_ours(shared: Service) -> None:
    assert "results" in await shared.post("/v1/score", query=QUERY, titles=TITLES)
    error = await shared.refused("/v1/score", 422, query=QUERY, titles=TITLES, queries=[QUERY])
    assert error["message"] == "queries: there is no such field"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"text_1": ["a", "b"], "text_2": ["c"]},
            "text_1: 2 queries for 1 titles; send one query, or as many",
        ),
        ({"queries": "a"}, "documents: is missing"),
        ({"text_1": ["a", " "], "text_2": ["c", "d"]}, "text_1[1]: must not be blank"),
        ({"text_1": "a", "text_2": "c", "model": "x@nope"}, "model: there is no such variant; there is full"),
    ],
)
async def test_wrong_requests_are_refused_with_their_own_names(
    path: str, body: dict[str, Any], message: str
) -> None:
    async with client(APP) as http:
        answer = await http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (422, message.partition(":")[0])
    assert error["message"].startswith(message)
