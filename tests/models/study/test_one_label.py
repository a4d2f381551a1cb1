"""A reranker with one score is studied and pruned: its dead heads are found, and no report names grades."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

from headroom import Classifier, HeadMask
from headroom.models.study.pairs import read_for
from headroom.models.study.runner import Runner
from headroom.models.study.search.networks import Networks
from headroom.models.study.study import Study
from tests.checkpoints import load, random_model, random_pairs, write_vocabulary
from tests.prompt import Run, write_labelled

LAYERS = 4
HEADS = 5
SIZE = 8
DEAD = {(0, 1), (0, 4), (1, 0), (1, 2), (1, 3), (2, 2), (3, 0), (3, 4)}
ALIVE = {(layer, head) for layer in range(LAYERS) for head in range(HEADS)} - DEAD
QUERIES = 300
TITLES = 6
GRADED_WORDS = re.compile(
    r"QWK|macro-F1|(?<!pair.)(?<!relative )accuracy|calibration error|grades differ|of the grades"
)


def pooled(
    model: BertForSequenceClassification, clf: Classifier, pairs: Sequence[tuple[str, str]]
) -> np.ndarray:
    """Return what the classifier of transformers' network reads, (n, D)."""
    encoded = clf.tokenizer.encode(pairs)
    shape = (len(encoded), max(len(pair) for pair in encoded))
    ids, types, is_token = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
    for row, pair in enumerate(encoded):
        ids[row, : len(pair)] = torch.from_numpy(pair.ids.astype(np.int64))
        types[row, pair.title_start : len(pair)] = 1
        is_token[row, : len(pair)] = 1
    with torch.no_grad():
        features: np.ndarray = model.bert(ids, is_token, types).pooler_output.numpy()
    return features


def some_pairs(first: int, seed: int) -> list[tuple[str, str]]:
    """QUERIES queries of TITLES titles; the numbers in the queries count from `first`."""
    words = random_pairs(QUERIES * TITLES, seed)
    numbers = [first + row // TITLES for row in range(len(words))]
    return [(f"lamp {number}", title) for number, (_, title) in zip(numbers, words, strict=True)]


def write_judged(path: Path, pairs: Sequence[tuple[str, str]], relevance: np.ndarray) -> Path:
    """Write five grades, each of a fifth of the pairs."""
    grades = np.searchsorted(np.quantile(relevance, (0.2, 0.4, 0.6, 0.8)), relevance)
    return write_labelled(path, [(*pair, grade) for pair, grade in zip(pairs, grades, strict=True)])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model`: a random body whose heads in DEAD write nothing, and a head that was fitted to judgments by
    least squares; `data.csv` and `holdout.csv`, judgments of the same people."""
    directory = tmp_path_factory.mktemp("one label")
    model: BertForSequenceClassification = random_model(
        5, num_hidden_layers=LAYERS, num_attention_heads=HEADS, hidden_size=HEADS * SIZE, num_labels=1
    )
    with torch.no_grad():
        for layer, head in DEAD:
            output = model.bert.encoder.layer[layer].attention.output.dense.weight
            output[:, head * SIZE : (head + 1) * SIZE] = 0
    model.save_pretrained(directory / "model")
    write_vocabulary(directory / "model")
    clf = load(directory / "model")
    rng = np.random.default_rng(0)
    taste = rng.standard_normal(HEADS * SIZE)
    for name, first, seed in (("data", 0, 1), ("holdout", 1000, 2)):
        rows = some_pairs(first, seed)
        features = pooled(model, clf, rows)
        relevance = features @ taste
        relevance += 0.1 * relevance.std() * rng.standard_normal(len(rows))
        write_judged(directory / f"{name}.csv", rows, relevance)
        if name == "data":
            centred = features - features.mean(0)
            fitted, *_ = np.linalg.lstsq(centred, relevance - relevance.mean(), rcond=None)
            with torch.no_grad():
                model.classifier.weight[0] = torch.from_numpy(fitted)
                model.classifier.bias[0] = 7 - float(features.mean(0) @ fitted)  # far from a probability of ½
    model.save_pretrained(directory / "model")
    return directory


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((path / "report.json").read_text(encoding="utf-8"))
    return content


def study(shop: Path, out: Path) -> Study:
    clf = load(shop / "model")
    data = read_for(clf.config, shop / "data.csv", seed=0)
    return Study(clf, data.take(list(range(60))), Runner(clf), out)


@pytest.mark.more
def test_from_judgments_to_a_smaller_model_that_ranks_as_well(shop: Path, run: Run, tmp_path: Path) -> None:
    given = ["--model", str(shop / "model"), "--data", str(shop / "data.csv"), "--dtype", "float32"]
    for kind in ("single", "random", "layers", "search"):
        options = [] if kind == "single" else ["--quick"]
        if kind == "search":
            options += ["--holdout", str(shop / "holdout.csv")]
        verdict = run("study", kind, *given, *options, "--out", str(tmp_path / kind)).out
        assert "NDCG@10" in verdict or kind == "single"
        for name in ("report.md", "report.html", "report.json"):
            text = (tmp_path / kind / name).read_text(encoding="utf-8")
            assert not GRADED_WORDS.search(text), (kind, name, GRADED_WORDS.search(text))

    heads = {(row["layer"], row["head"]): row for row in read(tmp_path / "single")["heads"]}
    assert {head for head, row in heads.items() if row["p_non_inferior"] <= 0.05} == DEAD
    assert all(set(heads[head]["delta"].values()) == {0.0} for head in DEAD)
    assert {head for head, row in heads.items() if row["p_adjusted"] <= 0.05} == ALIVE
    study = json.loads((tmp_path / "single" / "head_study.json").read_text(encoding="utf-8"))
    assert next(iter(study["metrics"])) == "ndcg10"

    search = read(tmp_path / "search")
    mask = HeadMask.parse(search["chosen"]["spec"], layers=LAYERS, heads=HEADS)
    assert {(int(layer), int(head)) for layer, head in np.argwhere(mask.matrix == 0)} == DEAD
    assert search["chosen"]["holdout"]["passed"]
    small = tmp_path / "small"
    run("prune", "--model", str(shop / "model"), "--mask", str(tmp_path / "search" / "mask.json"),
        "--out", str(small))  # fmt: skip

    both = ["--model", str(shop / "model"), "--model", str(small), "--dtype", "float32"]
    judged = json.loads(run("evaluate", *both, "--data", str(shop / "holdout.csv"), "--json").out)
    (difference,) = judged["differences"]
    assert difference["change"]["ndcg10"]["value"] == pytest.approx(0, abs=1e-9)
    assert difference["margin_excluded"] == {"ndcg10": True}
    assert "qwk" not in judged["sides"][0]["metrics"]
    assert judged["sides"][0]["metrics"]["ndcg10"]["low"] > judged["ndcg10_random_order"]


@pytest.mark.more
def test_networks_differ_by_how_far_scores_move(shop: Path, tmp_path: Path) -> None:
    """All scores are moved far from 0, where a sigmoid is flat."""
    networks = Networks(study(shop, tmp_path))
    heads = np.ones((LAYERS, HEADS), np.float32)
    heads[tuple(np.transpose(sorted(DEAD)))] = 0
    assert networks.divergence(HeadMask(heads)) == pytest.approx(0, abs=1e-9)
    heads[0, 0] = 0
    assert networks.divergence(HeadMask(heads)) > 1e-4
