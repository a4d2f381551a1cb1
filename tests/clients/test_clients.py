"""Other people's clients on the real service: what they read, and what they raise."""

from typing import Any

import httpx
import pytest

from tests.clients.conftest import DOCUMENTS, QUERY, Outcomes
from tests.service.running import Server

pytestmark = [pytest.mark.slow, pytest.mark.more]

CASES = ("bad_request", "unknown_key", "full_queue")

# For each client: its environment, and what it raises in each of CASES. A client that reads the answer's text
# without its status raises one class for all three; then the message tells them apart.
Client = tuple[str, tuple[str, ...]]
COHERE = ("BadRequestError", "UnauthorizedError", "TooManyRequestsError")
LITELLM = ("BadRequestError", "AuthenticationError", "RateLimitError")
RERANKERS: dict[str, Client] = {
    "cohere_v2": ("sdk", COHERE),
    "cohere_v1": ("sdk", COHERE),
    "litellm_cohere": ("sdk", LITELLM),
    "litellm_cohere_v1": ("sdk", LITELLM),
    "litellm_jina_ai": ("sdk", LITELLM),
    "litellm_infinity": ("sdk", LITELLM),
    "litellm_hosted_vllm": ("sdk", LITELLM),
    "litellm_hosted_vllm_root": ("sdk", LITELLM),
    "litellm_voyage": ("sdk", LITELLM),
    "voyageai": ("sdk", ("InvalidRequestError", "AuthenticationError", "RateLimitError")),
    "rerankers_cohere": ("sdk", ("KeyError",) * 3),
    "rerankers_jina": ("sdk", ("KeyError",) * 3),
    "rerankers_voyage": ("sdk", ("KeyError",) * 3),
    "langchain_cohere": ("frameworks", COHERE),
    "llama_index_cohere": ("frameworks", COHERE),
    "llama_index_jina": ("frameworks", ("RuntimeError",) * 3),
    "haystack_jina": ("frameworks", ("RuntimeError",) * 3),
    "infinity_client": ("frameworks", ("UnexpectedStatus",) * 3),
}
TEI: dict[str, Client] = {
    "litellm_huggingface": ("sdk", ("APIError", "AuthenticationError", "RateLimitError")),
    "rerankers_tei": ("sdk", ("TypeError",) * 3),
    "llama_index_tei": ("frameworks", ("AssertionError",) * 3),
    "haystack_tei": ("frameworks", ("RuntimeError",) * 3),
}
OTHERS: dict[str, Client] = {
    "huggingface_hub": ("sdk", ("HfHubHTTPError",) * 3),
    "triton": ("sdk", ("InferenceServerException",) * 3),
}
CLIENTS = RERANKERS | TEI | OTHERS
WITHOUT_DOCUMENTS = ("cohere_v2", "litellm_cohere")
"""Cohere's version 2 returns no documents."""
WITHOUT_TOP_N = ("rerankers_cohere", "rerankers_jina", "rerankers_voyage", "rerankers_tei")
WITHOUT_MODEL = ("litellm_huggingface", "llama_index_tei", "haystack_tei")
"""Clients that send no model, and so can name no variant; their bad request is a blank query."""
SILENT = (*WITHOUT_TOP_N, "llama_index_tei")
"""Clients that read an answer without its status, and so drop the service's message."""
SENTENCES = {"unknown_key": "Send a valid API key", "full_queue": "The queue is full"}


@pytest.fixture
def did(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    """What a client did, by case."""
    outcomes: Outcomes = request.getfixturevalue(CLIENTS[name][0])
    return outcomes[name]


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
    results = {
        name: httpx.post(f"{server.url}/v1/score", json=body | fields).json()["results"]
        for name, fields in asked.items()
    }
    assert results["masked"] != results["full"]
    return results


@pytest.fixture(scope="module")
def scores(ours: dict[str, list[dict[str, Any]]]) -> dict[str, list[float]]:
    """The scores of `ours`."""
    return {name: [each["score"] for each in results] for name, results in ours.items()}


def ranked(scores: list[float], count: int = len(DOCUMENTS)) -> list[int]:
    return sorted(range(len(scores)), key=lambda index: -scores[index])[:count]


def assert_ranked(results: list[Any], scores: list[float], count: int = len(DOCUMENTS)) -> None:
    assert [index for index, *_ in results] == ranked(scores, count)
    assert [score for _, score, _ in results] == pytest.approx([scores[index] for index, *_ in results])


@pytest.mark.parametrize("case", ["top", "all", "variant"])
@pytest.mark.parametrize("name", [*RERANKERS, *TEI])
def test_results_are_sorted_and_as_many_as_wanted_with_their_documents(
    name: str, did: dict[str, Any], case: str, scores: dict[str, list[float]]
) -> None:
    variant = "masked" if case == "variant" and name not in WITHOUT_MODEL else "full"
    count = len(DOCUMENTS) if case == "all" or name in WITHOUT_TOP_N else 3
    assert_ranked(returned(did[case]), scores[variant], count)
    for index, _, text in returned(did["all"]):
        assert text == (None if name in WITHOUT_DOCUMENTS else DOCUMENTS[index])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", CLIENTS)
def test_each_failure_is_an_exception_of_the_clients_own(name: str, did: dict[str, Any], case: str) -> None:
    outcome = did[case]
    assert "raised" in outcome, outcome
    assert CLIENTS[name][1][CASES.index(case)] in outcome["raised"], outcome
    bad_request = "there is no variant 'nobody'" if name in RERANKERS else "must not be blank"
    if name == "triton":
        bad_request = "should be 'score', 'probabilities' or 'grade'"
    if name not in SILENT:
        assert SENTENCES.get(case, bad_request) in outcome["text"]


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
