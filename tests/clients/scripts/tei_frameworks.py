"""LlamaIndex's and Haystack's rankers for text-embeddings-inference; a part of `frameworks.py`."""

from __future__ import annotations

from typing import Any

from harness import DOCUMENTS, QUERY, exercise
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker, TruncationDirection
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference


def query_for(model: str) -> str:
    """Return the query; these clients send no model, so that a blank query is their bad request."""
    return " " if model.endswith("@nobody") else QUERY


def llama_index(url: str, key: str, model: str, top_n: int) -> Any:
    ranker = TextEmbeddingInference(base_url=url, auth_token=f"Bearer {key}", top_n=top_n)
    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(n))) for n, text in enumerate(DOCUMENTS)]
    ranked = ranker.postprocess_nodes(nodes, QueryBundle(query_for(model)))
    return [[int(node.node_id), node.score, node.text] for node in ranked]


def haystack(url: str, key: str, model: str, top_n: int) -> Any:
    ranker = HuggingFaceTEIRanker(url=url, token=Secret.from_token(key), top_k=top_n, max_retries=1)
    documents = [Document(id=str(number), content=text) for number, text in enumerate(DOCUMENTS)]
    ranked = ranker.run(query_for(model), documents, truncation_direction=TruncationDirection.RIGHT)
    return [[int(document.id), document.score, document.content] for document in ranked["documents"]]


def exercise_tei() -> None:
    exercise("llama_index_tei", llama_index)
    exercise("haystack_tei", haystack)
