"""Labels whose names say their order are grades in that order; of others a line says which counts as best."""

import json
from pathlib import Path

import numpy as np
import pytest

from headroom.models.checkpoint.label_names import order_by_name
from headroom.service.scoring.cache import weights_key
from tests.checkpoints import load, random_pairs, write_checkpoint
from tests.families import edit_config
from tests.prompt import Run, write_labelled
from tests.prompt import run as run


@pytest.mark.parametrize(
    "names",
    [
        ("irrelevant", "related", "partial", "close", "exact"),
        ("Irrelevant", "Complement", "Substitute", "Exact"),
        ("-1", "0", "1.5", "10"),
        ("★☆☆", "★★☆", "★★★"),
        ("contradiction", "neutral", "entailment"),
    ],
)
def test_names_that_say_their_order_are_understood_in_any_order(names: tuple[str, ...]) -> None:
    order = np.random.default_rng(0).permutation(len(names))
    found = order_by_name([names[index] for index in order])
    assert found is not None
    assert [names[order[index]] for index in found] == list(names)


@pytest.mark.parametrize(
    "names",
    [
        ("shoes", "hats"),
        ("exact", "shoes"),
        ("1", "1.0"),
    ],
)
def test_other_names_are_not_guessed(names: tuple[str, ...]) -> None:
    assert order_by_name(names) is None


def planted(directory: Path, *labels: str) -> Path:
    """Write a checkpoint whose labels have these names, in the order of their ids."""
    write_checkpoint(directory, num_labels=len(labels))
    label2id = {name: number for number, name in enumerate(labels)}
    edit_config(directory, id2label=dict(enumerate(labels)), label2id=label2id)
    return directory


def test_grades_follow_the_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`Exact` has id 0 in many checkpoints of ESCI's data: "Irrelevant" was on top."""
    esci = planted(tmp_path / "esci", "Exact", "Substitute", "Complement", "Irrelevant")
    plain = planted(tmp_path / "plain", "LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3")
    pairs = random_pairs(20)
    scores = load(esci).score(pairs)
    by_ids = load(plain).score(pairs)
    assert load(esci).grades == ("Irrelevant", "Complement", "Substitute", "Exact")
    np.testing.assert_array_equal(scores.grade, 3 - by_ids.grade)
    np.testing.assert_allclose(scores.score, 1 - by_ids.score, atol=1e-6)
    assert "labels do not say" not in capsys.readouterr().err


def test_a_guess_is_said_once_and_an_option_ends_it(run: Run, tmp_path: Path) -> None:
    model = planted(tmp_path / "mine", "shoes", "hats", "socks")
    options = ["--model", str(model), "--device", "cpu", "--dtype", "float32"]
    guessed = run("score", "usb cable", "usb lamp", "--json", *options)
    line = "headroom: mine: the labels do not say which one is best: 'socks' counts as most relevant and"
    assert guessed.err.count(line) == 1
    told = run("score", "usb cable", "usb lamp", "--json", "--label-order", "socks, hats,shoes", *options)
    assert "labels do not say" not in told.err
    row = json.loads(told.out)
    assert row["score"] == pytest.approx(1 - json.loads(guessed.out)["score"])
    wrong = run("score", "usb cable", "usb lamp", "--label-order", "socks,hats", *options, status=1)
    assert "does not name each label of the checkpoint once: ['shoes', 'hats', 'socks']" in wrong.err

    file = write_labelled(tmp_path / "judged.csv", [("usb", f"lamp {grade}", grade) for grade in range(3)])
    judged = run("evaluate", "--data", str(file), "--label-order", "socks,hats,shoes", "--json", *options)
    assert "labels do not say" not in judged.err


def test_scores_in_another_order_have_another_key_in_a_shared_cache(tmp_path: Path) -> None:
    """A row of the cache holds logits from the least relevant label on."""
    model = planted(tmp_path / "mine", "shoes", "hats")
    plain = load(model)
    turned = load(model, label_order=("hats", "shoes"))
    assert (plain.config.changed_order, turned.config.changed_order) == (None, (1, 0))
    assert weights_key(plain) != weights_key(turned)
