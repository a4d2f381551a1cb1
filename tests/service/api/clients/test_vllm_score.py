"""vLLM's score requests, at /score and beside our own at /v1/score."""

import numpy as np

from headroom import Classifier
from tests.service.in_process import QUERY, TITLES, Service, in_session

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
