"""The templates for Elasticsearch and OpenSearch: what each sends is taken, and what each reads is there."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.service.in_process import Service, in_session

ROOT = Path(__file__).parents[4]
RECORDED: dict[str, Any] = json.loads((ROOT / "tests/fixtures/search_engines.json").read_text("utf-8"))


async def answered(
    service: Service, engine: str, template: str, url: str
) -> tuple[dict[str, Any], list[float]]:
    """Return the answer to the body that an engine made of this template, and the documents' scores."""
    recorded = RECORDED[engine]
    assert template == recorded["template"]
    headers = {"content-type": "application/json", "authorization": "Bearer YOUR-KEY"}
    answer = await service.http.post(urlsplit(url).path, content=recorded["body"].encode(), headers=headers)
    assert answer.status_code == 200, answer.text
    scored = await service.post("/v1/score", query=RECORDED["query"], titles=RECORDED["documents"])
    return answer.json(), [result["score"] for result in scored["results"]]


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
    settings = json.loads((ROOT / "deploy/elasticsearch/rerank.json").read_text("utf-8"))["service_settings"]
    answer, expected = await answered(shared, "elasticsearch", settings["request"], settings["url"])
    paths = settings["response"]["json_parser"]
    indices, scores = read(answer, paths["reranked_index"]), read(answer, paths["relevance_score"])
    assert sorted(indices) == [0, 1, 2]
    assert scores == sorted(scores, reverse=True) == pytest.approx([expected[index] for index in indices])


@in_session
async def test_opensearch_gets_a_double_for_every_document(shared: Service) -> None:
    connector = json.loads((ROOT / "deploy/opensearch/connector.json").read_text("utf-8"))
    action = connector["actions"][0]
    url = action["url"].replace("${parameters.endpoint}", connector["parameters"]["endpoint"])
    assert action["post_process_function"] == "connector.post_process.cohere.rerank"
    answer, expected = await answered(shared, "opensearch", action["request_body"], url)
    # CohereRerankPostProcessFunction: scores[(Integer) index] = (Double) relevance_score
    results = answer["results"]
    assert {(type(result["index"]), type(result["relevance_score"])) for result in results} == {(int, float)}
    scores = {result["index"]: result["relevance_score"] for result in results}
    assert [scores[index] for index in range(len(expected))] == pytest.approx(expected)
