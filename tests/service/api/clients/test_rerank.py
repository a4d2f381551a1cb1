"""The rerank routes as other people's clients call them; those clients themselves are in tests/clients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headroom import Classifier, HeadMask
from headroom.service.schemas.requests import DocumentsRequest, ScoreRequest
from tests.checkpoints import WORDS, random_model, write_vocabulary
from tests.service.api.test_api import post
from tests.service.fake_backend import FakeBackend, app_with
from tests.service.in_process import QUERY, TITLES, Service, in_session, serve

PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
"""For tests that need no settings or metrics of their own."""
BODY: dict[str, Any] = {"model": "rerank-v3.5", "query": "angle bracket", "documents": ["a", "b", "c"]}


async def requested(path: str, **fields: Any) -> ScoreRequest:
    """What the backend is asked for a request of this shape."""
    backend = FakeBackend()
    response = await post(app_with(backend), path, BODY | fields)
    assert response.status_code == 200, response.text
    request = backend.requests[0]
    assert isinstance(request, ScoreRequest)
    return request


async def test_our_fields_are_taken_and_unknown_ones_ignored() -> None:
    ours = {"head_mask": "2.3", "unit": "u-1", "deadline_ms": 500}
    for path in PATHS:
        request = await requested(path, colour="red", priority=3, **ours)
        assert request.titles == ["a", "b", "c"]
        assert request.model_dump(include=set(ours)) == ours
        assert request.variant is None
        assert (await requested(path, model="any/name@full")).variant == "full"
        assert (await requested(path, model=None, variant="full")).variant == "full"
        assert (await requested(path, model="any@full", variant="full")).variant == "full"


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("/v2/rerank", {"max_tokens_per_doc": 4096}, ("chunks", 4096, None)),
        ("/v2/rerank", {"max_tokens_per_doc": 0}, None),
        ("/v1/rerank", {"max_tokens_per_doc": 0, "max_chunks_per_doc": 2}, ("chunks", None, 2)),
        ("/v1/rerank", {"max_chunks_per_doc": 10, "max_tokens_per_doc": 99}, ("chunks", 99, 10)),
        ("/v1/rerank", {"truncate_prompt_tokens": 99}, ("truncate", 99, None)),
    ],
)
async def test_how_much_is_read_of_long_documents(path: str, fields: dict[str, Any], expected: Any) -> None:
    request = await requested(path, **fields)
    if expected is None:
        assert type(request) is ScoreRequest
        assert request.overflow == "truncate"
    else:
        assert isinstance(request, DocumentsRequest)
        assert (request.overflow, request.max_tokens_per_doc, request.max_chunks_per_doc) == expected


@in_session
async def test_documents_rank_as_v1_score_scores_them(shared: Service) -> None:
    scored = await shared.post("/v1/score", query=QUERY, titles=TITLES, variant="cut")
    scores = [result["score"] for result in scored["results"]]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    for path in PATHS:
        answer = await shared.post(path, query=QUERY, documents=TITLES, model="x@cut")
        assert [result["index"] for result in answer["results"]] == order
        assert [result["relevance_score"] for result in answer["results"]] == [scores[i] for i in order]
        assert answer["meta"]["tokens"]["input_tokens"] == scored["usage"]["tokens"]
        (warning,) = answer["meta"]["warnings"]
        assert "(index 3)" in warning
        assert answer["model"].endswith("@cut")
    many = await shared.post("/v1/rerank", query=QUERY, documents=[TITLES[3]] * 101)
    assert many["meta"]["billed_units"] == {"search_units": 2}
    assert "101 documents were truncated" in many["meta"]["warnings"][0]
    assert "(index 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …)" in many["meta"]["warnings"][0]


async def test_titles_whose_scores_round_to_1_are_ranked_by_their_logits(tmp_path: Path) -> None:
    titles = [" ".join(WORDS[i : i + 4]) for i in range(20)]
    model = random_model(num_labels=1)
    model.classifier.weight.data *= 3
    model.classifier.bias.data += 40  # no float32 between the sigmoids of these logits
    model.save_pretrained(tmp_path)
    write_vocabulary(tmp_path)
    clf = Classifier.load(tmp_path, "cpu", "float32")
    scores = clf.score([(QUERY, title) for title in titles])
    assert set(scores.score.tolist()) == {1.0}
    best = np.argsort(-scores.logits[:, 0], kind="stable").tolist()
    assert best != sorted(best)
    cheap = clf.score([(QUERY, title) for title in titles], HeadMask.parse("0.*", layers=3, heads=4))
    kept = np.argsort(-cheap.logits[:, 0], kind="stable")[:3].tolist()
    cascade = {"name": "cascade", "cascade": [{"variant": "cheap", "keep": 3}, {"variant": "full"}]}
    variants = [{"name": "full"}, {"name": "cheap", "head_mask": "0.*"}, cascade]
    async with serve(tmp_path, {"variants": variants}) as service:
        answer = await service.post("/v1/rerank", query=QUERY, documents=titles, top_n=2)
        assert [result["index"] for result in answer["results"]] == best[:2]
        own = (await service.post("/v1/score", query=QUERY, titles=titles))["results"]
        assert sorted(range(20), key=lambda i: -own[i]["raw_score"]) == best
        staged = await service.post("/v1/score", query=QUERY, titles=titles, variant="cascade")
        assert [row["index"] for row in staged["results"] if row["stage"] == "full"] == sorted(kept)
        raw = await service.post(
            "/v1/rerank", query=QUERY, documents=titles, model="x@cascade", raw_scores=True
        )
        assert [row["index"] for row in raw["results"][:3]] == [index for index in best if index in kept]


@in_session
async def test_an_empty_title_says_so_and_ranks_last(shared: Service) -> None:
    documents = ["", "angle", " \u200b", "steel bracket, black"]
    own = (await shared.post("/v1/score", query=QUERY, titles=documents))["results"]
    assert [row.get("empty", False) for row in own] == [True, False, True, False]
    assert [row["score"] for row in own if row.get("empty")] == [0, 0]
    assert own[0]["grade"] == 0
    assert own[0]["probabilities"] == [1, 0, 0, 0, 0]
    order = [3, 1, 0, 2] if own[3]["score"] > own[1]["score"] else [1, 3, 0, 2]
    for path in PATHS:
        answer = await shared.post(path, query=QUERY, documents=documents)
        assert [row["index"] for row in answer["results"]] == order
        assert answer["meta"]["warnings"] == ["2 documents were empty and ranked last (index 0, 2)."]
    voyage = await shared.post("/v1/rerank", query=QUERY, documents=documents, top_k=None)
    assert [row["index"] for row in voyage["data"]] == order
    assert voyage["warnings"] == ["2 documents were empty and ranked last (index 0, 2)."]
    columns = (await shared.post("/v1/compare", query=QUERY, titles=documents, masks=["none", "0.*"]))[
        "columns"
    ]
    assert all(column["results"][0]["score"] == 0 and column["results"][0]["empty"] for column in columns)
    alone = await shared.http.post("/predict", json={"inputs": "angle"})
    assert max(prediction["score"] for prediction in alone.json()) < 1
