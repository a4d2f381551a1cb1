"""Other people's rerank clients on the real service: what they read, and what they raise."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.clients.conftest import DOCUMENTS, QUERY, Outcomes
from tests.service.running import Server

pytestmark = pytest.mark.slow

# For each client: what it raises for a bad request, an unknown key and a full queue. A client that reads the
# answer's text without its status raises one class for all three; then the message tells them apart.
Raised = tuple[str, str, str]
COHERE: Raised = ("BadRequestError", "UnauthorizedError", "TooManyRequestsError")
LITELLM: Raised = ("BadRequestError", "AuthenticationError", "RateLimitError")
SDK: dict[str, Raised] = {
    "cohere_v2": COHERE,
    "cohere_v1": COHERE,
    "litellm_cohere": LITELLM,
    "litellm_cohere_v1": LITELLM,
    "litellm_jina_ai": LITELLM,
    "litellm_infinity": LITELLM,
    "litellm_hosted_vllm": LITELLM,
    "litellm_hosted_vllm_root": LITELLM,
    "litellm_voyage": LITELLM,
    "voyageai": ("InvalidRequestError", "AuthenticationError", "RateLimitError"),
    "rerankers_cohere": ("KeyError",) * 3,
    "rerankers_jina": ("KeyError",) * 3,
    "rerankers_voyage": ("KeyError",) * 3,
}
FRAMEWORKS: dict[str, Raised] = {
    "langchain_cohere": COHERE,
    "llama_index_cohere": COHERE,
    "llama_index_jina": ("RuntimeError",) * 3,
    "haystack_jina": ("RuntimeError",) * 3,
    "infinity_client": ("UnexpectedStatus",) * 3,
}
CLIENTS = {**SDK, **FRAMEWORKS}
BY_NAME = [*((name, "sdk") for name in SDK), *((name, "frameworks") for name in FRAMEWORKS)]
WITHOUT_DOCUMENTS = ("cohere_v2", "litellm_cohere")
"""Cohere's version 2 returns no documents."""
WITHOUT_TOP_N = ("rerankers_cohere", "rerankers_jina", "rerankers_voyage")
SILENT = WITHOUT_TOP_N
"""Clients that drop the service's message."""


@pytest.fixture(params=BY_NAME, ids=[name for name, _ in BY_NAME])
def client(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A client's name, and what it did."""
    name, environment = request.param
    outcomes: Outcomes = request.getfixturevalue(environment)
    return name, outcomes[name]


def returned(outcome: dict[str, Any]) -> Any:
    assert "returned" in outcome, outcome
    return outcome["returned"]


@pytest.fixture(scope="module")
def scores(server: Server) -> dict[str, list[float]]:
    """The scores of /v1/score: of the default, of the variant `masked`, and under an own mask."""
    asked: dict[str, dict[str, str]] = {
        "full": {},
        "masked": {"variant": "masked"},
        "mask": {"head_mask": "2.*"},
    }
    return {
        name: [
            result["score"]
            for result in httpx.post(
                f"{server.url}/v1/score", json={"query": QUERY, "titles": DOCUMENTS, **fields}
            ).json()["results"]
        ]
        for name, fields in asked.items()
    }


def ranked(scores: list[float], count: int = len(DOCUMENTS)) -> list[int]:
    return sorted(range(len(scores)), key=lambda index: -scores[index])[:count]


def assert_ranked(results: list[Any], scores: list[float], count: int = len(DOCUMENTS)) -> None:
    assert [index for index, *_ in results] == ranked(scores, count)
    assert [score for _, score, _ in results] == pytest.approx([scores[index] for index, *_ in results])


def test_results_are_sorted_and_as_many_as_wanted(
    client: tuple[str, dict[str, Any]], scores: dict[str, list[float]]
) -> None:
    name, did = client
    assert_ranked(returned(did["top"]), scores["full"], len(DOCUMENTS) if name in WITHOUT_TOP_N else 3)
    assert_ranked(returned(did["all"]), scores["full"])


def test_the_documents_come_back(client: tuple[str, dict[str, Any]]) -> None:
    name, did = client
    for index, _, text in returned(did["all"]):
        assert text == (None if name in WITHOUT_DOCUMENTS else DOCUMENTS[index])


def test_a_model_names_a_variant(client: tuple[str, dict[str, Any]], scores: dict[str, list[float]]) -> None:
    name, did = client
    assert scores["masked"] != scores["full"]
    assert_ranked(returned(did["variant"]), scores["masked"], len(DOCUMENTS) if name in WITHOUT_TOP_N else 3)


@pytest.mark.parametrize(
    ("number", "case", "sentence"),
    [
        (0, "bad_request", "there is no variant 'nobody'"),
        (1, "unknown_key", "Send a valid API key"),
        (2, "full_queue", "The queue is full"),
    ],
)
def test_each_failure_is_an_exception_of_the_clients_own(
    client: tuple[str, dict[str, Any]], number: int, case: str, sentence: str
) -> None:
    name, did = client
    outcome = did[case]
    assert "raised" in outcome, outcome
    assert CLIENTS[name][number] in outcome["raised"], outcome
    if name not in SILENT:
        assert sentence in outcome["text"]


def test_a_mask_comes_as_an_extra_field_where_a_client_sends_some(
    sdk: Outcomes, frameworks: Outcomes, scores: dict[str, list[float]]
) -> None:
    for did in (sdk["cohere_v2"], frameworks["infinity_client"]):
        assert_ranked(returned(did["mask"]), scores["mask"], 3)


def test_truncation_is_told_in_coheres_warnings_and_undone_by_its_limits(sdk: Outcomes) -> None:
    for name in ("cohere_v1", "cohere_v2"):
        meta = returned(sdk[name]["long"])["meta"]
        (warning,) = meta["warnings"]
        assert "1 document was truncated" in warning
        assert f"(index {len(DOCUMENTS)})" in warning
        assert meta["billed_units"]["search_units"] == 1
        assert meta["tokens"]["input_tokens"] > 0
        whole = returned(sdk[name]["long_in_chunks"])["meta"]
        assert not whole["warnings"]
        assert whole["tokens"]["input_tokens"] > meta["tokens"]["input_tokens"] + 400


def test_cohere_1_ranks_objects_by_their_text_or_the_fields_it_names(
    sdk: Outcomes, scores: dict[str, list[float]]
) -> None:
    did = sdk["cohere_v1"]
    assert_ranked(returned(did["objects"]), scores["full"], 3)
    results = returned(did["rank_fields"])["results"]
    for result in results:
        assert result["document"] == {"text": DOCUMENTS[result["index"]], "id": str(result["index"])}
    assert [result["relevance_score"] for result in results] != sorted(scores["full"], reverse=True)
    assert all(result["document"] is None for result in returned(did["no_documents"])["results"])


def test_infinity_gets_logits_for_raw_scores(frameworks: Outcomes, scores: dict[str, list[float]]) -> None:
    results = returned(frameworks["infinity_client"]["raw"])
    assert [index for index, *_ in results] == ranked(scores["full"], 3)
    assert [score for _, score, _ in results] != pytest.approx([scores["full"][i] for i, *_ in results])


def test_voyage_without_top_k_gets_all_and_without_truncation_an_error(sdk: Outcomes) -> None:
    did = sdk["voyageai"]
    assert returned(did["no_top_k"]) == len(DOCUMENTS)
    assert returned(did["long"]) > 0
    assert "InvalidRequestError" in did["no_truncation"]["raised"]
    assert f"documents[{len(DOCUMENTS)}]" in did["no_truncation"]["text"]
