"""Cohere's clients, whose requests name a unit of an interleaved experiment."""

import json
import os
from typing import Any

import cohere

ARGUMENTS: dict[str, Any] = json.loads(os.environ["ARGUMENTS"])
UNIT = {"additional_body_parameters": {"unit": ARGUMENTS["unit"], "ids": ARGUMENTS["ids"]}}


def ranked(answer: Any) -> dict[str, Any]:
    """Return the answer's id, and the index and score of each result in the order that the client shows."""
    results = [[result.index, result.relevance_score] for result in answer.results]
    return {"id": answer.id, "results": results}


def main() -> None:
    asked = {"query": ARGUMENTS["query"], "documents": ARGUMENTS["documents"], "request_options": UNIT}
    new = cohere.ClientV2("no-key", base_url=ARGUMENTS["url"])
    old = cohere.Client("no-key", base_url=ARGUMENTS["url"])
    answers = {
        "v2": ranked(new.rerank(model="m", **asked)),
        "v2_top": ranked(new.rerank(model="m", top_n=3, **asked)),
        "v1": ranked(old.rerank(model="m", **asked)),
    }
    print(json.dumps(answers))


main()
