"""Rows of a file get the scores of their pairs alone, whatever the device or a row does."""

import csv
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from headroom import Classifier, HeadMask, ModelError
from headroom.service.files.running import Summary
from tests.checkpoints import write_overflowing
from tests.service.files.killed import arguments, score_all

TITLES = ["red lamp", "wood lamp usb", "steel cable red", "angle wood", "table light"]


def write(path: Path, count: int) -> list[dict[str, str]]:
    """Write a file of this many rows, and return its rows."""
    rows = [{"query": "wood lamp", "title": f"{TITLES[i % 5]} {i % 7}"} for i in range(count)]
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["query", "title"])
        writer.writeheader()
        writer.writerows(rows)
    return rows


def score(source: Path, output: Path, model: Path, *, window_rows: int = 4096, **options: Any) -> Summary:
    job = arguments(source, output, model, **options)
    return score_all(job, lambda *_: None, window_rows=window_rows)


def check(output: Path, rows: list[dict[str, str]], model: Path, spec: str) -> None:
    """Compare each row's score with that of its pair alone."""
    clf = Classifier.load(model, "cpu", "float32")
    with output.open(newline="") as stream:
        scored = list(csv.DictReader(stream))
    assert [row["title"] for row in scored] == [row["title"] for row in rows]
    mask = HeadMask.parse(spec, layers=3, heads=4)
    for found, row in zip(scored, rows, strict=True):
        expected = clf.score([(row["query"], row["title"])], mask)
        assert float(found["score"]) == pytest.approx(expected.score[0], abs=1e-5)
        assert orjson.loads(found["probabilities"]) == pytest.approx(expected.probabilities[0], abs=1e-5)
        assert found["label"] == clf.grades[expected.grade[0]]


def test_batches_that_do_not_fit_the_memory_are_halved(
    tiny_checkpoint: Path, clf: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that a GPU scores beside something else ended in a traceback, hours in."""
    rows = write(tmp_path / "in.csv", 100)
    forward, sizes = Classifier.forward, []

    def small(self: Classifier, pairs: Any, *how: Any, **options: Any) -> Any:
        sizes.append(sum(map(len, pairs)))
        if sizes[-1] > 250:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, pairs, *how, **options)

    monkeypatch.setattr(Classifier, "forward", small)
    score(tmp_path / "in.csv", tmp_path / "out.csv", tiny_checkpoint, window_rows=50)
    first_fit = next(index for index, size in enumerate(sizes) if size <= 250)
    assert max(sizes[first_fit + 3 :]) <= 250, "later batches are as large as the one that did not fit"
    pairs = [(row["query"], row["title"]) for row in rows]
    whole = clf.score(pairs)
    assert whole.score.shape == (100,)
    monkeypatch.undo()
    check(tmp_path / "out.csv", rows, tiny_checkpoint, "none")

    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(Classifier, "forward", full)
    with pytest.raises(ModelError, match="too small for one pair"):
        score(tmp_path / "in.csv", tmp_path / "none.csv", tiny_checkpoint)


def test_a_row_without_a_finite_score_is_the_one_set_aside(tmp_path: Path) -> None:
    model = write_overflowing(tmp_path / "model", "usb")
    source, output = tmp_path / "a.csv", tmp_path / "out.csv"
    rows = write(source, 5)

    summary = score(source, output, model, mask="0-1.*")

    assert (summary.rows, summary.rejects) == (4, 1)
    reject = orjson.loads(Path(str(summary.rejects_file)).read_text())
    assert reject["reason"] == "the model gives no finite score"
    assert orjson.loads(reject["text"]) == rows[1]
    check(output, [rows[0], *rows[2:]], model, "0-1.*")
