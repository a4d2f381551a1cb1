"""Clients of text-embeddings-inference and of the Open Inference Protocol on the real service."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.clients.conftest import DOCUMENTS, QUERY, Outcomes
from tests.service.running import Server

pytestmark = pytest.mark.slow

# For each client: what it raises for a bad request, an unknown key and a full queue.
Raised = tuple[str, str, str]
LITELLM: Raised = ("APIError", "AuthenticationError", "RateLimitError")
RANKERS: dict[str, tuple[str, Raised]] = {
    "litellm_huggingface": ("sdk", LITELLM),
    "rerankers_tei": ("sdk", ("TypeError",) * 3),
    "llama_index_tei": ("frameworks", ("AssertionError",) * 3),
    "haystack_tei": ("frameworks", ("RuntimeError",) * 3),
}
OTHERS: dict[str, Raised] = {
    "huggingface_hub": ("HfHubHTTPError",) * 3,
    "triton": ("InferenceServerException",) * 3,
}
CLIENTS = {**RANKERS, **{name: ("sdk", raised) for name, raised in OTHERS.items()}}
SILENT = ("rerankers_tei", "llama_index_tei")
"""Clients that read an answer without its status, and so drop the service's message."""
SENTENCES = {
    "unknown_key": "Send a valid API key",
    "full_queue": "The queue is full",
}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A client's name, and what it did."""
    outcomes: Outcomes = request.getfixturevalue(CLIENTS[request.param][0])
    return request.param, outcomes[request.param]


def returned(outcome: dict[str, Any]) -> Any:
    assert "returned" in outcome, outcome
    return outcome["returned"]


@pytest.fixture(scope="module")
def ours(server: Server) -> dict[str, list[dict[str, Any]]]:
    """The results of /v1/score: of the default, of the variant `masked`, and under an own mask."""
    asked: dict[str, dict[str, str]] = {
        "full": {},
        "masked": {"variant": "masked"},
        "mask": {"head_mask": "2.*"},
    }
    body = {"query": QUERY, "titles": DOCUMENTS}
    return {
        name: httpx.post(f"{server.url}/v1/score", json=body | fields).json()["results"]
        for name, fields in asked.items()
    }


@pytest.mark.parametrize("name", RANKERS)
@pytest.mark.parametrize("case", ["top", "all", "variant"])
def test_results_are_sorted_and_as_many_as_wanted_with_their_texts(
    request: pytest.FixtureRequest, name: str, case: str, ours: dict[str, list[dict[str, Any]]]
) -> None:
    did = request.getfixturevalue(RANKERS[name][0])[name]
    # Of these clients one sends the model's name, which may name a variant; and it is the one without top_n.
    sends_model = name == "rerankers_tei"
    scores = [each["score"] for each in ours["masked" if case == "variant" and sends_model else "full"]]
    count = len(DOCUMENTS) if case == "all" or sends_model else 3
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[:count]

    assert [index for index, *_ in returned(did[case])] == best
    assert [score for _, score, _ in returned(did[case])] == pytest.approx([scores[i] for i in best])
    assert [text for *_, text in returned(did[case])] == [DOCUMENTS[index] for index in best]


@pytest.mark.parametrize("case", ["bad_request", "unknown_key", "full_queue"])
def test_each_failure_is_an_exception_of_the_clients_own(
    client: tuple[str, dict[str, Any]], case: str
) -> None:
    name, did = client
    assert "raised" in did[case], did[case]
    expected = CLIENTS[name][1][["bad_request", "unknown_key", "full_queue"].index(case)]
    assert expected in did[case]["raised"], did[case]
    if name not in SILENT:
        sentence = (
            "should be 'score', 'probabilities' or 'grade'" if name == "triton" else "must not be blank"
        )
        assert SENTENCES.get(case, sentence) in did[case]["text"]


def test_the_hubs_client_learns_health_kind_and_the_best_label(sdk: Outcomes, server: Server) -> None:
    did = sdk["huggingface_hub"]
    assert returned(did["healthy"]) is True
    assert returned(did["info"])["max_client_batch_size"] == 1000
    labels = httpx.post(server.url, json={"inputs": QUERY}).json()
    assert returned(did["classify"]) == [labels[0]["label"], labels[0]["score"]]


def test_triton_reads_the_same_scores_in_bytes_and_in_json(
    sdk: Outcomes, ours: dict[str, list[dict[str, Any]]]
) -> None:
    did = sdk["triton"]
    for case, name in (("binary", "full"), ("json", "full"), ("variant", "masked"), ("mask", "mask")):
        outputs = returned(did[case])
        assert outputs["score"] == pytest.approx([each["score"] for each in ours[name]], abs=1e-6), case
        assert outputs["grade"] == [each["grade"] for each in ours[name]]
    assert ours["masked"] != ours["full"]
    for row, each in zip(returned(did["binary"])["probabilities"], ours["full"], strict=True):
        assert row == pytest.approx(each["probabilities"], abs=1e-6)
    assert "probabilities" not in returned(did["json"])


def test_triton_learns_what_is_served_and_that_its_timeout_passed(sdk: Outcomes) -> None:
    did = sdk["triton"]
    assert returned(did["server"]) == [True, True]
    assert returned(did["models"]) == [True, True, False]
    assert returned(did["metadata"])["name"] == "full"
    assert "InferenceServerException" in did["late"]["raised"]
    assert "deadline" in did["late"]["text"]
