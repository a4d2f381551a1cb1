"""Clients that servers' makers publish, and two that speak to all of them."""

import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks GitHub for prices when it is imported

import cohere
import litellm
import numpy as np
import voyageai
from harness import DOCUMENTS, KEY, LOCKED, QUERY, URL, attempt, exercise, finish, until_raised
from huggingface_hub import InferenceClient
from rerankers import Reranker
from rerankers.models.api_rankers import APIRanker
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

LONG = [*DOCUMENTS, "steel " * 500]


def cohere_v2(url: str, key: str, model: str, top_n: int, **more: Any) -> Any:
    client = cohere.ClientV2(key, base_url=url, max_retries=0)
    answer = client.rerank(model=model, query=QUERY, documents=DOCUMENTS, top_n=top_n, **more)
    return [[result.index, result.relevance_score, None] for result in answer.results]


def cohere_v1(url: str, key: str, model: str, top_n: int, **more: Any) -> Any:
    client = cohere.Client(key, base_url=url, max_retries=0)
    options = {"documents": DOCUMENTS, "return_documents": True} | more
    answer = client.rerank(model=model, query=QUERY, top_n=top_n, **options)
    return [[result.index, result.relevance_score, result.document.text] for result in answer.results]


def cohere_details() -> None:
    client, old = cohere.ClientV2("no-key", base_url=URL), cohere.Client("no-key", base_url=URL)
    body = {"additional_body_parameters": {"head_mask": "2.*"}}
    attempt("cohere_v2", "mask", lambda: cohere_v2(URL, "no-key", "m", 3, request_options=body))
    objects = [{"text": text, "id": str(number)} for number, text in enumerate(DOCUMENTS)]
    attempt("cohere_v1", "objects", lambda: cohere_v1(URL, "no-key", "m", 3, documents=objects))
    ids = {"documents": objects, "rank_fields": ["id"], "return_documents": True}
    attempt("cohere_v1", "rank_fields", lambda: old.rerank(query=QUERY, **ids).model_dump())
    attempt("cohere_v1", "no_documents", lambda: old.rerank(query=QUERY, documents=DOCUMENTS).model_dump())

    def long(**more: Any) -> Any:
        return client.rerank(model="m", query=QUERY, documents=LONG, **more).model_dump()

    attempt("cohere_v2", "long", long)
    attempt("cohere_v2", "long_in_chunks", lambda: long(max_tokens_per_doc=4096))
    attempt("cohere_v1", "long", lambda: old.rerank(query=QUERY, documents=LONG).model_dump())
    chunks = {"documents": LONG, "max_chunks_per_doc": 100}
    attempt("cohere_v1", "long_in_chunks", lambda: old.rerank(query=QUERY, **chunks).model_dump())


def by_litellm(name: str, provider: str, path: str = "", **more: Any) -> None:
    def rank(url: str, key: str, model: str, top_n: int) -> Any:
        answer = litellm.rerank(
            model=f"{provider}/{model}",
            query=QUERY,
            documents=DOCUMENTS,
            top_n=top_n,
            return_documents=True,
            api_base=f"{url}{path}",
            api_key=key,
            **more,
        )
        return [
            [result["index"], result["relevance_score"], result.get("document", {}).get("text")]
            for result in answer.results
        ]

    exercise(name, rank)


def by_voyage(url: str, key: str, model: str, top_n: int) -> Any:
    client = voyageai.Client(api_key=key, base_url=f"{url}/v1")
    answer = client.rerank(QUERY, DOCUMENTS, model=model, top_k=top_n)
    return [[result.index, result.relevance_score, result.document] for result in answer.results]


def voyage_details() -> None:
    client = voyageai.Client(api_key="no-key", base_url=f"{URL}/v1")
    attempt("voyageai", "no_top_k", lambda: len(client.rerank(QUERY, DOCUMENTS, model="m").results))
    attempt("voyageai", "long", lambda: client.rerank(QUERY, LONG, model="m").total_tokens)
    attempt("voyageai", "no_truncation", lambda: client.rerank(QUERY, LONG, model="m", truncation=False))


def by_rerankers(provider: str) -> None:
    def rank(url: str, key: str, model: str, _: int) -> Any:
        ranker = Reranker(model, model_type=provider, api_key=key, url=f"{url}/v1/rerank", verbose=0)
        ranked = ranker.rank(QUERY, DOCUMENTS)  # all of them: it has no top_n
        return [[result.doc_id, result.score, result.text] for result in ranked.results]

    exercise(f"rerankers_{provider}", rank)


def litellm_tei(url: str, key: str, model: str, top_n: int) -> Any:
    query = " " if model.endswith("@nobody") else QUERY  # it sends no model
    options: dict[str, Any] = {
        "query": query,
        "documents": DOCUMENTS,
        "top_n": top_n,
        "return_documents": True,
    }
    answer = litellm.rerank(model=f"huggingface/{model}", api_base=url, api_key=key, **options)
    return [
        [result["index"], result["relevance_score"], result["document"]["text"]] for result in answer.results
    ]


def rerankers_tei(url: str, key: str, model: str, _: int) -> Any:
    ranker = APIRanker(model, key, "text-embeddings-inference", verbose=0, url=f"{url}/rerank")
    ranked = ranker.rank(QUERY, DOCUMENTS)  # all of them: it has no top_n
    return [[result.doc_id, result.score, result.text] for result in ranked.results]


def hugging_face() -> None:
    client = InferenceClient(provider="hf-inference", model=URL, token="no-key")
    attempt("huggingface_hub", "healthy", client.health_check)
    attempt("huggingface_hub", "info", client.get_endpoint_info)

    def classify(text: str, client: InferenceClient = client) -> Any:
        best: Any = client.text_classification(text)  # of TEI's list of labels it returns the first
        return [best.label, best.score]

    locked = InferenceClient(provider="hf-inference", model=LOCKED, token=KEY)
    attempt("huggingface_hub", "classify", lambda: classify(QUERY))
    attempt("huggingface_hub", "bad_request", lambda: classify(" "))
    stranger = InferenceClient(provider="hf-inference", model=LOCKED, token="wrong")
    attempt("huggingface_hub", "unknown_key", lambda: classify(QUERY, stranger))
    until_raised("huggingface_hub", lambda: classify(QUERY, locked))


def infer(url: str, key: str, model: str, binary: bool = True, **more: Any) -> Any:
    """Return the outputs by name, as lists."""
    inputs = []
    for name, texts in (("query", [QUERY]), ("title", DOCUMENTS)):
        tensor = InferInput(name, [len(texts)], "BYTES")
        tensor.set_data_from_numpy(np.array(texts, dtype=np.object_), binary_data=binary)
        inputs.append(tensor)
    client = InferenceServerClient(url.removeprefix("http://"))
    try:
        answer = client.infer(model, inputs, headers={"Authorization": f"Bearer {key}"}, **more)
    finally:
        client.close()
    outputs = answer.get_response()["outputs"]
    return {output["name"]: answer.as_numpy(output["name"]).tolist() for output in outputs}


def triton() -> None:
    client = InferenceServerClient(URL.removeprefix("http://"))
    as_json = [InferRequestedOutput(name, binary_data=False) for name in ("grade", "score")]
    attempt("triton", "server", lambda: [client.is_server_live(), client.is_server_ready()])
    attempt(
        "triton", "models", lambda: [client.is_model_ready(name) for name in ("full", "masked", "nobody")]
    )
    attempt("triton", "metadata", lambda: client.get_model_metadata("full", "1"))
    attempt("triton", "binary", lambda: infer(URL, "no-key", "full"))
    attempt("triton", "json", lambda: infer(URL, "no-key", "full", binary=False, outputs=as_json))
    attempt("triton", "variant", lambda: infer(URL, "no-key", "masked", model_version="1"))
    attempt("triton", "mask", lambda: infer(URL, "no-key", "full", parameters={"head_mask": "2.*"}))
    attempt("triton", "late", lambda: infer(URL, "no-key", "full", timeout=1))
    attempt(
        "triton", "bad_request", lambda: infer(URL, "no-key", "full", outputs=[InferRequestedOutput("x")])
    )
    attempt("triton", "unknown_key", lambda: infer(LOCKED, "wrong", "full"))
    until_raised("triton", lambda: infer(LOCKED, KEY, "full"))


exercise("cohere_v2", cohere_v2)
exercise("cohere_v1", cohere_v1)
cohere_details()
by_litellm("litellm_cohere", "cohere")
by_litellm("litellm_cohere_v1", "cohere", max_chunks_per_doc=10)  # which only version 1 has
by_litellm("litellm_jina_ai", "jina_ai")
by_litellm("litellm_infinity", "infinity")
by_litellm("litellm_hosted_vllm", "hosted_vllm", "/v1", truncate_prompt_tokens=60)
by_litellm("litellm_hosted_vllm_root", "hosted_vllm", truncate_prompt_tokens=60)
by_litellm("litellm_voyage", "voyage")
exercise("voyageai", by_voyage)
voyage_details()
for provider in ("cohere", "jina", "voyage"):
    by_rerankers(provider)
exercise("litellm_huggingface", litellm_tei)
exercise("rerankers_tei", rerankers_tei)
hugging_face()
triton()
finish()
