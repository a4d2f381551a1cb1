"""Text-embeddings-inference's routes, on a real small network and on one that fails."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from headroom import Classifier
from headroom.service.errors import DeadlineExceeded, DeviceFailed, InferenceFailed, InternalError, QueueFull
from tests.checkpoints import GRADES, write_checkpoint
from tests.decoders import SHORT, write_decoder
from tests.families import edit_config
from tests.service.asgi import client
from tests.service.fake_backend import FakeBackend, app_with
from tests.service.in_process import QUERY, TITLES, Service, in_session, serve

RERANK = {"query": QUERY, "texts": TITLES}


TIMES = ("compute", "total", "tokenization", "queue", "inference")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def one_label_service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("one-label"), num_labels=1)
    async with serve(checkpoint, {"variants": [{"name": "full"}]}) as running:
        yield running


async def ask(service: Service, path: str, body: Any) -> Any:
    answer = await service.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@in_session
async def test_a_text_too_long_is_truncated_unless_the_request_says_no(
    shared: Service, clf: Classifier
) -> None:
    body = {"query": QUERY, "texts": ["lamp", "steel " * 100 + "angle bracket"]}

    assert await ask(shared, "/", body) == await ask(shared, "/", body | {"truncate": True})
    refused = await shared.http.post("/", json=body | {"truncate": False})
    assert (refused.status_code, refused.json()) == (
        422,
        {
            "error": "texts[1]: does not fit into the window of 64 tokens; "
            "send shorter texts, or allow truncation",
            "error_type": "Validation",
        },
    )
    kept = "steel " * (64 - 3 - 2 - 2) + "angle bracket"  # what is left of the window
    (expected,) = clf.score([(QUERY, kept)]).score
    ranks = await ask(shared, "/", body | {"truncation_direction": "Left"})
    (score,) = [rank["score"] for rank in ranks if rank["index"] == 1]
    assert score == pytest.approx(expected, abs=1e-6)


@in_session
async def test_predictions_are_the_labels_by_probability(shared: Service, clf: Classifier) -> None:
    scores = clf.score([(QUERY, TITLES[0])])
    for raw, values in ((False, scores.probabilities[0]), (True, scores.logits[0])):
        single = await ask(shared, "/predict", {"inputs": [QUERY, TITLES[0]], "raw_scores": raw})
        assert [each["label"] for each in single] == [GRADES[place] for place in np.argsort(-values)]
        assert [each["score"] for each in single] == pytest.approx(sorted(values, reverse=True), abs=1e-5)


@in_session
async def test_a_text_a_pair_and_a_batch_are_told_apart(shared: Service, one_label_service: Service) -> None:
    for running, labels in ((shared, 5), (one_label_service, 1)):
        text = await ask(running, "/predict", {"inputs": "angle"})
        pair = await ask(running, "/predict", {"inputs": ["angle", "steel"]})
        batch = await ask(running, "/", {"inputs": [["angle", "steel"], ["angle", ""]]})

        assert [len(labelled) for labelled in (text, pair, *batch)] == [labels] * 4
        assert [each["label"] for each in pair] == [each["label"] for each in batch[0]]
        assert [each["score"] for each in pair] == pytest.approx([each["score"] for each in batch[0]])
        assert batch[1] != text  # a text with an empty partner is no text alone


@pytest.mark.parametrize(("family", "template"), [("qwen2", None), ("qwen3", SHORT)])
async def test_a_decoder_classifies_a_text_alone_and_takes_it_for_no_empty_title(
    family: str, template: str | None, tmp_path: Path
) -> None:
    checkpoint = write_decoder(tmp_path / "decoder", family, 4, causal=False, template=template, num_labels=5)
    text = "Q: angle\nD: \n->"
    if template is None:  # pairs without a prompt
        text = "angle"
        edit_config(checkpoint, headroom={"prompt": "pair"})
    tokens = AutoTokenizer.from_pretrained(checkpoint)(text, return_tensors="pt")["input_ids"]
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()
    with torch.inference_mode():
        expected = model(tokens).logits[0].softmax(-1).tolist()
    async with serve(checkpoint, {"variants": [{"name": "full"}]}) as service:
        labelled = await ask(service, "/predict", {"inputs": "angle"})
        assert [each["score"] for each in labelled] == pytest.approx(sorted(expected, reverse=True), abs=1e-4)
        empty = await ask(service, "/predict", {"inputs": ["angle", ""]})
        assert [each["score"] for each in empty] == [1, 0, 0, 0, 0]


@in_session
async def test_headers_tell_what_it_took_in_whole_milliseconds(shared: Service) -> None:
    answer = await shared.http.post("/", json=RERANK)

    scored = await shared.post("/v1/score", query=QUERY, titles=TITLES)
    assert int(answer.headers["x-compute-tokens"]) == scored["usage"]["tokens"]
    assert all(int(answer.headers[f"x-{name}-time"]) >= 0 for name in TIMES)


async def answered(
    backend: FakeBackend | None, path: str, body: Any, **headers: str
) -> tuple[int, dict[str, Any], Any]:
    """Status, JSON and headers of one request."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    async with client(app_with(backend, api_keys="alpha")) as http:
        answer = await http.post(path, content=content, headers={"authorization": "Bearer alpha"} | headers)
    return answer.status_code, answer.json(), answer.headers


@pytest.mark.parametrize(
    ("path", "failure", "status", "kind"),
    [
        ("/predict", QueueFull(), 429, "Overloaded"),
        ("/", DeviceFailed(), 503, "Unhealthy"),
        ("/rerank", InferenceFailed(), 424, "Backend"),
        ("/predict", InternalError(), 500, "Backend"),
        ("/rerank", DeadlineExceeded(), 504, "Overloaded"),
    ],
    ids=repr,
)
async def test_failures_have_their_statuses_and_types(
    path: str, failure: Exception, status: int, kind: str
) -> None:
    body = {"inputs": "angle"} if path == "/predict" else RERANK
    answer = await answered(FakeBackend(fails=failure), path, body)

    assert answer[:2] == (status, {"error": str(failure), "error_type": kind})
    assert ("retry-after" in answer[2]) == (status in (429, 503))
