"""Clients of text-embeddings-inference and of the Open Inference Protocol; a part of `sdk.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import litellm
import numpy as np
from harness import DOCUMENTS, KEY, LOCKED, PATIENCE_S, QUERY, URL, attempt, exercise
from huggingface_hub import InferenceClient
from rerankers.models.api_rankers import APIRanker
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput


def by_litellm(url: str, key: str, model: str, top_n: int) -> Any:
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


def by_rerankers(url: str, key: str, model: str, _: int) -> Any:
    ranker = APIRanker(model, key, "text-embeddings-inference", verbose=0, url=f"{url}/rerank")
    ranked = ranker.rank(QUERY, DOCUMENTS)  # all of them: it has no top_n
    return [[result.doc_id, result.score, result.text] for result in ranked.results]


def until_raised(client: str, call: Callable[[], Any]) -> None:
    """Try until the queue is full, which it is nearly all the time."""
    deadline = time.monotonic() + PATIENCE_S
    while "raised" not in attempt(client, "full_queue", call) and time.monotonic() < deadline:
        pass


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


def exercise_tei() -> None:
    exercise("litellm_huggingface", by_litellm)
    exercise("rerankers_tei", by_rerankers)
    hugging_face()
    triton()
