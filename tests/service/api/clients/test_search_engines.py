"""The templates for Elasticsearch and OpenSearch: what each sends is taken, and what each reads is there."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.service.in_process import Service, in_session

ROOT = Path(__file__).parents[4]
RECORDED: dict[str, Any] = json.loads((ROOT / "tests/fixtures/search_engines.json").read_text("utf-8"))
ELASTICSEARCH: dict[str, Any] = json.loads((ROOT / "deploy/elasticsearch/rerank.json").read_text("utf-8"))
OPENSEARCH: dict[str, Any] = json.loads((ROOT / "deploy/opensearch/connector.json").read_text("utf-8"))


async def answer_to(service: Service, url: str, body: str) -> dict[str, Any]:
    """The answer to a recorded body."""
    headers = {"content-type": "application/json", "authorization": "Bearer YOUR-KEY"}
    answer = await service.http.post(urlsplit(url).path, content=body.encode(), headers=headers)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def expected(service: Service) -> list[float]:
    """The score of each document."""
    answer = await service.post("/v1/score", query=RECORDED["query"], titles=RECORDED["documents"])
    return [result["score"] for result in answer["results"]]


def read(answer: dict[str, Any], path: str) -> list[Any]:
    """What Elasticsearch's MapPathExtractor finds at a path such as `$.results[*].index`."""
    values: list[Any] = [answer]
    for step in path.removeprefix("$.").split("."):
        name = step.removesuffix("[*]")
        values = [value[name] for value in values]
        if name != step:
            (values,) = values
    return values


@in_session
async def test_elasticsearch_reads_indices_and_scores(shared: Service) -> None:
    settings = ELASTICSEARCH["service_settings"]
    paths = settings["response"]["json_parser"]
    assert settings["request"] == RECORDED["elasticsearch"]["template"]

    answer = await answer_to(shared, settings["url"], RECORDED["elasticsearch"]["body"])

    indices, scores = read(answer, paths["reranked_index"]), read(answer, paths["relevance_score"])
    of_index = await expected(shared)
    assert sorted(indices) == [0, 1, 2]
    assert scores == sorted(scores, reverse=True) == pytest.approx([of_index[index] for index in indices])


@in_session
async def test_opensearch_gets_a_double_for_every_document(shared: Service) -> None:
    action = OPENSEARCH["actions"][0]
    url = action["url"].replace("${parameters.endpoint}", OPENSEARCH["parameters"]["endpoint"])
    assert action["request_body"] == RECORDED["opensearch"]["template"]
    assert action["post_process_function"] == "connector.post_process.cohere.rerank"

    answer = await answer_to(shared, url, RECORDED["opensearch"]["body"])

    # CohereRerankPostProcessFunction: scores[(Integer) index] = (Double) relevance_score
    results = answer["results"]
    assert {(type(result["index"]), type(result["relevance_score"])) for result in results} == {(int, float)}
    scores = {result["index"]: result["relevance_score"] for result in results}
    of_index = await expected(shared)
    assert [scores[index] for index in range(len(of_index))] == pytest.approx(of_index)
