"""The snippets of docs/integrations.md that name Cohere's client and LiteLLM, run as they stand there."""

import asyncio
import json
import os
from types import SimpleNamespace
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks GitHub for prices when it is imported

import litellm
import yaml

ARGUMENTS: dict[str, Any] = json.loads(os.environ["ARGUMENTS"])
QUERY: str = ARGUMENTS["query"]
DOCUMENTS: list[str] = ARGUMENTS["documents"]
COUNT = 3

# Hits as each engine's client gives them.
HITS: dict[str, list[Any]] = {
    "qdrant-client": [SimpleNamespace(payload={"title": text}) for text in DOCUMENTS],
    "pyvespa": [{"id": "…", "fields": {"title": text}} for text in DOCUMENTS],
    "pysolr": [{"id": "…", "title": text} for text in DOCUMENTS],
}


def reranked() -> dict[str, list[int]]:
    """Return the indices of the best hits of each engine, by the page's function and `title_of`."""
    namespace: dict[str, Any] = {}
    exec(ARGUMENTS["rerank"], namespace)
    best = {}
    for engine, hits in HITS.items():
        chosen = namespace["rerank"](QUERY, hits, eval(ARGUMENTS["title_of"][engine]), COUNT)
        best[engine] = [next(index for index, hit in enumerate(hits) if hit is one) for one in chosen]
    return best


def by_litellm() -> list[int]:
    """Return the indices of the best documents, by LiteLLM's router with the page's configuration."""
    router = litellm.Router(model_list=yaml.safe_load(ARGUMENTS["litellm"])["model_list"])
    answer = asyncio.run(router.arerank(model="headroom", query=QUERY, documents=DOCUMENTS, top_n=COUNT))
    return [result["index"] for result in answer.results]


print(json.dumps(reranked() | {"litellm": by_litellm()}))
