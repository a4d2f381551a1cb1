"""Heads of the query generator's encoder–decoder attention, one off at a time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headroom import Classifier, ModelError
from headroom.models.generate.memory import memory_of, states_of
from headroom.models.generate.search import search
from headroom.models.study import cross, kinds
from tests.generators import with_generator
from tests.models.generate.test_network import QUESTIONS
from tests.models.study.data import drawn, judged, study
from tests.prompt import Run


@pytest.fixture(scope="module")
def writer(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    """Its cross head 1.2 writes nothing."""
    clf = with_generator(tiny_checkpoint, tmp_path_factory.mktemp("cross"))
    network = clf.checked_generator().network
    attention = network._layers()[1].cross
    size = attention.head_size
    with torch.no_grad():
        attention.output.weight[:, 2 * size : 3 * size] = 0
    return clf


def test_the_likelihood_of_a_query_is_what_the_search_says(writer: Classifier) -> None:
    generator = writer.checked_generator()
    for question in QUESTIONS:
        encoded = generator.encode(question)
        with torch.inference_mode():
            memory = memory_of(
                [encoded], states_of(generator.encoder, [encoded]), generator.tokenizer.unknown
            )
            writable = generator.writable.of([encoded])
            ((written,),) = search(generator.network, memory, [1], generator.readable, writable)
            targets = torch.tensor([[*written.pieces, generator.network.config.end]])
            logs = cross.log_likelihood(generator.network, memory, targets)
        if len(written.pieces) < generator.network.config.max_pieces - 1:
            assert logs.mean().exp().item() == pytest.approx(written.score, rel=1e-4)


def test_a_head_that_writes_nothing_neither_copies_nor_translates(writer: Classifier, tmp_path: Path) -> None:
    asked = replace(study(writer, tmp_path, judged(16)), part="cross")
    result = kinds.run("single", asked)
    rows = {(row["layer"], row["head"]): row for row in result.json["heads"]}
    assert len(rows) == 8
    idle = rows.pop((1, 2))
    assert idle["does"] is None
    assert idle["delta"]["written"] == pytest.approx(0, abs=1e-5)
    assert idle["delta"]["rouge_l"] == 0
    assert all(abs(row["delta"]["written"]) > 1e-3 for row in rows.values())
    assert result.json["pieces"]["written"] > 0
    assert drawn(result) == "cross-heads"


def test_copied_pieces_are_those_that_the_question_has(writer: Classifier) -> None:
    generator = writer.checked_generator()
    encoded = [generator.encode(question) for question in QUESTIONS[:2]]
    memory = memory_of(encoded, states_of(generator.encoder, encoded), generator.tokenizer.unknown)
    targets = torch.tensor([[memory.pieces[0, 1].item(), 5], [7, -1]])
    batch = cross.QuestionBatch(memory, generator.writable.of(encoded), targets, ["", ""])
    assert batch.copied.tolist() == [[True, False], [False, False]]
    assert batch.written.tolist() == [[False, True], [True, False]]


@pytest.mark.parametrize(
    ("losses", "wanted"), [(np.full((20, 2), 0.3), 0.001), (np.tile([0.3, -0.3], (10, 2)).T, 1.0)]
)
def test_only_what_falls_in_most_questions_is_shown(losses: np.ndarray, wanted: float) -> None:
    p = cross._p_values(losses, seed=0)
    assert max(p) == pytest.approx(wanted, abs=0.5 if wanted == 1 else 0.001)


def test_a_checkpoint_without_a_generator_is_told_so(clf: Classifier, run: Run, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no query generator"):
        kinds.run("single", replace(study(clf, tmp_path), part="cross"))
    refused = run(
        "study", "roles", "--part", "cross", "--data", "pairs.csv", "--out", str(tmp_path), status=2
    )
    assert "`study roles` has no use for it" in refused.err
