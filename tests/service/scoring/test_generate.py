"""POST /v1/condense with the method generate, on a real (small) network with a random generator."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from headroom import Classifier
from headroom.models.generate.generator import Generator
from tests.checkpoints import load
from tests.generators import with_generator
from tests.service.in_process import CONFIG, QUERY, TITLES, Service, in_session, serve

QUESTION = "where is a steel angle bracket for the deck?"
CONDENSE = "/v1/condense"


@pytest.fixture(scope="session")
def checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("served-generator")
    with_generator(tiny_checkpoint, directory)
    return directory


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def writing(checkpoint: Path) -> AsyncIterator[Service]:
    async with serve(checkpoint, CONFIG) as service:
        yield service


@pytest.fixture(scope="session")
def writer(checkpoint: Path) -> Classifier:
    return load(checkpoint)


@in_session
@pytest.mark.parametrize("mask", ["none", "1.0-2;decoder:0.1;cross:1.*", "cross:0.0"])
async def test_the_answer_is_that_of_python(writing: Service, writer: Classifier, mask: str) -> None:
    answer = await writing.post(CONDENSE, query=QUESTION, method="generate", beams=3, head_mask=mask)
    expected = writer.generate_query(QUESTION, 3, mask)
    assert [one["query"] for one in answer["queries"]] == [one.query for one in expected]
    scores = [one["score"] for one in answer["queries"]]
    assert scores == pytest.approx([one.score for one in expected], abs=1e-4)
    assert answer["condensed"] == expected[0].query
    parts = (answer["head_mask"]["spec"], answer["generator_mask"])
    assert ";".join(part for part in parts if part != "none") in {mask, ""}
    assert (answer["method"], answer["attention"]) == ("generate", None)
    assert set(answer["timing_ms"]) == {"tokenize", "queue", "inference", "total"}


@in_session
async def test_masks_are_multiplied_onto_a_variants(writing: Service, writer: Classifier) -> None:
    answer = await writing.post(
        CONDENSE, query=QUESTION, method="generate", variant="masked", head_mask="cross:0.1"
    )
    expected = writer.generate_query(QUESTION, 4, "1.0-2;cross:0.1")
    assert [one["query"] for one in answer["queries"]] == [one.query for one in expected]
    assert (answer["variant"], answer["head_mask"]["spec"]) == ("masked", "1.0-2")


@in_session
async def test_attention_of_the_written_words_over_the_question(writing: Service, writer: Classifier) -> None:
    answer = await writing.post(CONDENSE, query=QUESTION, method="generate", heads="1.0-1")
    generator = writer.checked_generator()
    asked = generator.ask(QUESTION, 4)
    whole = generator.align(asked, writer.write_queries([asked])[0][0])
    attention = answer["attention"]
    assert [(one["layer"], one["head"]) for one in attention["heads"]] == [(1, 0), (1, 1)]
    for one in attention["heads"]:
        np.testing.assert_allclose(one["probabilities"], whole.probabilities[1, one["head"]], atol=1e-4)
    assert "".join(attention["pieces"]).strip() == answer["condensed"]
    assert len(attention["question"]) == len(whole.question)


@in_session
async def test_requests_at_once_get_what_each_gets_alone(writing: Service) -> None:
    bodies: list[dict[str, Any]] = [
        {"query": QUESTION, "beams": 4},
        {"query": "usb lamp", "beams": 1, "head_mask": "cross:0.*"},
        {"query": "black mouse, wireless", "beams": 8, "head_mask": "skip:1;decoder:1.1"},
        {"query": QUESTION, "beams": 4, "head_mask": "0.1"},
    ]
    alone = [await writing.post(CONDENSE, method="generate", **body) for body in bodies]
    together = await asyncio.gather(
        *[writing.post(CONDENSE, method="generate", **body) for body in bodies],
        *[writing.post("/v1/score", query=QUERY, titles=TITLES) for _ in range(3)],
    )
    for one, other in zip(alone, together[:4], strict=True):
        assert [each["query"] for each in one["queries"]] == [each["query"] for each in other["queries"]]
        scores = [each["score"] for each in other["queries"]]
        assert scores == pytest.approx([each["score"] for each in one["queries"]], abs=1e-5)


@in_session
async def test_nothing_is_written_or_read_on_the_event_loop(
    writing: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[int]()
    names = set[str]()
    for name in ("encode", "write", "align"):
        call = getattr(Generator, name)

        def noted(*arguments: Any, call: Any = call, name: str = name) -> Any:
            threads.add(threading.get_ident())
            names.add(name)
            return call(*arguments)

        monkeypatch.setattr(Generator, name, noted)
    await writing.post(CONDENSE, query=QUESTION, method="generate", heads="*.*")
    assert names == {"encode", "write", "align"}
    assert threading.get_ident() not in threads


@in_session
@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"titles": TITLES}, "titles", "generate reads the question alone"),
        ({"method": "greedy", "beams": 2, "titles": TITLES}, "beams", "is of the method generate"),
        ({"heads": "2.*"}, "heads", "layer 2 does not exist; this model has layers 0 to 1"),
    ],
)
async def test_wrong_requests_get_one_sentence(
    writing: Service, body: dict[str, Any], param: str, message: str
) -> None:
    error = await writing.refused(CONDENSE, 422, **{"query": QUESTION, "method": "generate", **body})
    assert error["param"] == param
    assert message in error["message"]


@in_session
async def test_a_checkpoint_without_a_generator_says_so(shared: Service) -> None:
    error = await shared.refused(CONDENSE, 422, query=QUESTION, method="generate")
    assert error["param"] == "method"
    assert "does not have" in error["message"]
    assert (await shared.http.get("/v1/models")).json()["models"][0]["generator"] is None
