"""The rankers of LangChain, LlamaIndex and Haystack, and Infinity's own client."""

import os
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from harness import DOCUMENTS, QUERY, URL, attempt, exercise, finish
from haystack import Document as HaystackDocument
from haystack.utils import Secret
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker, TruncationDirection
from haystack_integrations.components.rankers.jina import JinaRanker
from infinity_client import AuthenticatedClient
from infinity_client.api.default import rerank
from infinity_client.models import RerankInput
from langchain_cohere import CohereRerank as LangChainCohere
from langchain_core.documents import Document as LangChainDocument
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank as LlamaIndexCohere
from llama_index.postprocessor.jinaai_rerank import JinaRerank as LlamaIndexJina
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference


def langchain_cohere(url: str, key: str, model: str, top_n: int) -> Any:
    ranker = LangChainCohere(cohere_api_key=key, base_url=url, model=model, top_n=top_n)
    documents = [LangChainDocument(text, metadata={"n": number}) for number, text in enumerate(DOCUMENTS)]
    return [
        [document.metadata["n"], document.metadata["relevance_score"], document.page_content]
        for document in ranker.compress_documents(documents, QUERY)
    ]


def by_llama_index(ranker: Any, query: str = QUERY) -> Any:
    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(n))) for n, text in enumerate(DOCUMENTS)]
    ranked = ranker.postprocess_nodes(nodes, QueryBundle(query))
    return [[int(node.node_id), node.score, node.text] for node in ranked]


def llama_index_cohere(url: str, key: str, model: str, top_n: int) -> Any:
    return by_llama_index(LlamaIndexCohere(api_key=key, base_url=url, model=model, top_n=top_n))


def llama_index_jina(url: str, key: str, model: str, top_n: int) -> Any:
    return by_llama_index(LlamaIndexJina(api_key=key, base_url=f"{url}/v1", model=model, top_n=top_n))


def by_haystack(ranker: Any, query: str = QUERY, **more: Any) -> Any:
    documents = [HaystackDocument(id=str(number), content=text) for number, text in enumerate(DOCUMENTS)]
    ranked = ranker.run(query, documents, **more)["documents"]
    return [[int(document.id), document.score, document.content] for document in ranked]


def haystack_jina(url: str, key: str, model: str, top_n: int) -> Any:
    ranker = JinaRanker(model, Secret.from_token(key), top_k=top_n, base_url=f"{url}/v1/rerank")
    return by_haystack(ranker)


def infinity(url: str, key: str, model: str, top_n: int, **more: Any) -> Any:
    client = AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True)
    raw_scores = more.pop("raw_scores", False)
    body = RerankInput(
        QUERY, DOCUMENTS, return_documents=True, raw_scores=raw_scores, model=model, top_n=top_n
    )
    body.additional_properties.update(more)
    answer = rerank.sync(client=client, body=body)
    return [[result.index, result.relevance_score, result.document] for result in answer.results]


def query_for(model: str) -> str:
    """Return the query; these clients send no model, so that a blank query is their bad request."""
    return " " if model.endswith("@nobody") else QUERY


def llama_index_tei(url: str, key: str, model: str, top_n: int) -> Any:
    ranker = TextEmbeddingInference(base_url=url, auth_token=f"Bearer {key}", top_n=top_n)
    return by_llama_index(ranker, query_for(model))


def haystack_tei(url: str, key: str, model: str, top_n: int) -> Any:
    ranker = HuggingFaceTEIRanker(url=url, token=Secret.from_token(key), top_k=top_n, max_retries=1)
    return by_haystack(ranker, query_for(model), truncation_direction=TruncationDirection.RIGHT)


exercise("langchain_cohere", langchain_cohere)
exercise("llama_index_cohere", llama_index_cohere)
exercise("llama_index_jina", llama_index_jina)
exercise("haystack_jina", haystack_jina)
exercise("infinity_client", infinity)
attempt("infinity_client", "mask", lambda: infinity(URL, "no-key", "m", 3, head_mask="2.*"))
attempt("infinity_client", "raw", lambda: infinity(URL, "no-key", "m", 3, raw_scores=True))
exercise("llama_index_tei", llama_index_tei)
exercise("haystack_tei", haystack_tei)
finish()
