"""`headroom distil`'s work: pairs without grades and a teacher in, a smaller checkpoint like it out."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import ndcg_score

from headroom import Classifier, ModelError, UnsupportedCheckpoint
from headroom.models.api.taught import Taught
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.tensors import read_tensors
from headroom.models.classifier import Scores
from headroom.models.compress.prune import prune
from headroom.models.quality.labelled import DEFAULT
from headroom.models.training import loop
from headroom.models.training.distil import job, running
from headroom.models.training.distil import pairs as distil_pairs
from headroom.models.training.distil.job import DistilOptions, StudentSize, prepare
from headroom.models.training.distil.job import write_pairs as write_pairs_of
from headroom.models.training.distil.losses import listwise, margin_mse
from headroom.models.training.distil.student import kept_mask
from tests.checkpoints import WORDS, load, write_checkpoint, write_int8
from tests.families import edit_config

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.more]

LISTS = torch.tensor([[0, 1, 2], [3, 4, -1]])


def distil(options: DistilOptions) -> dict[str, Any]:
    """Check the options, and teach."""
    return running.distil(prepare(options), Mock())


def write_pairs(file: Path, rows: Sequence[Sequence[object]], *columns: str) -> Path:
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([["query", "title", *columns], *rows])
    return file


def drawn(count: int, titles: int = 4, seed: int = 0) -> list[tuple[str, str]]:
    """Queries of two words, each with some titles of two to five."""
    rng = np.random.default_rng(seed)

    def text(low: int, high: int) -> str:
        return " ".join(rng.choice(WORDS, rng.integers(low, high)))

    return [(query, text(2, 6)) for query in (text(2, 3) for _ in range(count)) for _ in range(titles)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.csv", drawn(150))


@pytest.fixture(scope="module")
def judged_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Judged pairs of queries that are not among the others."""
    rng = np.random.default_rng(5)
    rows = [(f"{query} lamp", title, rng.integers(5)) for query, title in drawn(20, seed=3)]
    return write_pairs(tmp_path_factory.mktemp("test") / "test.csv", rows, "grade")


@pytest.fixture
def options(data: Path, judged_file: Path, tiny_checkpoint: Path, tmp_path: Path) -> DistilOptions:
    """A student of two of the teacher's three layers, taught in seconds."""
    return DistilOptions(
        data=data,
        out=tmp_path / "student",
        teacher=str(tiny_checkpoint),
        cut=StudentSize(layers=2),
        test=judged_file,
        steps=60,
        rate=3e-3,
        device="cpu",
    )


def test_a_student_comes_nearer_to_its_teacher_on_queries_that_it_never_saw(
    options: DistilOptions, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    metrics = distil(options)

    student = load(options.out)
    assert (student.num_layers, student.grades) == (2, load(tiny_checkpoint).grades)
    gained = metrics["agreement"]["change"]
    assert gained["low"] > 0
    others = drawn(40, seed=11)
    teacher = load(tiny_checkpoint).score(others)
    before = Classifier.load(_cut(tiny_checkpoint, tmp_path), "cpu", "float32").score(others)

    def divergence(scores: Scores) -> float:
        wanted = teacher.probabilities.astype(np.float64)
        return float((wanted * np.log(wanted / scores.probabilities)).sum(1).mean())

    assert divergence(student.score(others)) < 0.7 * divergence(before)
    assert json.loads((options.out / "metrics.json").read_text()) == metrics
    assert student.quality == pytest.approx(metrics["test"])
    assert set(metrics["quality"]["student_minus_teacher"]) == {"ndcg10", "query_spearman", "qwk"}
    assert metrics["speed"]["student_times_teacher"]["value"] > 0
    assert not options.work.exists()


def _cut(source: Path, target: Path) -> Path:
    """Write what a student of two layers is before it learns."""
    config = read_config(source)
    prune(
        source,
        target / "before",
        kept_mask(read_tensors(source, config), config, StudentSize(layers=2), (0, 2)),
    )
    return target / "before"


def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(
    options: DistilOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(distil_pairs, "PORTION_PAIRS", 200)
    options = replace(options, steps=24)
    whole = replace(options, out=options.out.with_name("whole"))
    distil(whole)

    with monkeypatch.context() as patch:
        patch.setattr(running.Run, "shown", Mock(side_effect=[None] * 13 + [KeyboardInterrupt]))
        with pytest.raises(KeyboardInterrupt):
            distil(options)
    assert not options.out.exists()
    assert len(list((options.work / "answers").glob("portion-*"))) > 1
    distil(options)
    ours, theirs = (load_file(one.out / "model.safetensors") for one in (options, whole))
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name


def test_an_answer_that_was_kept_is_not_computed_again(
    options: DistilOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large teacher takes hours; of a file that was cut off in the middle, whole parts count."""
    monkeypatch.setattr("headroom.models.training.distil.teacher.PART", 16)
    prepared = prepare(options)
    write_pairs_of(prepared)
    teacher = running.Run(prepared, Mock()).teacher
    assert teacher is not None
    asked = [distil_pairs.Pair(*pair) for pair in drawn(10, seed=4)]
    file = options.work / "answers.bin"
    first = teacher.kept_answers(asked, file)
    with file.open("r+b") as stream:
        stream.truncate(20 * teacher.answer_type.itemsize + 3)
    answers = Mock(wraps=teacher.answers)
    monkeypatch.setattr(teacher, "answers", answers)
    again = teacher.kept_answers(asked, file)
    assert [len(call.args[0]) for call in answers.call_args_list] == [16, 8]
    np.testing.assert_array_equal(again["logits"], first["logits"])
    teacher.kept_answers(asked, file)
    assert answers.call_count == 2


@pytest.mark.parametrize("labels", [3, 6])
def test_a_teacher_with_other_grades_is_judged_by_its_order(
    options: DistilOptions, tiny_checkpoint: Path, judged_file: Path, tmp_path: Path, labels: int
) -> None:
    teacher = write_checkpoint(tmp_path / "teacher", seed=7, num_labels=labels)
    options = replace(options, teacher=str(teacher), model=str(tiny_checkpoint), cut=StudentSize(), steps=1)
    metrics = distil(options)
    with judged_file.open() as stream:
        rows = list(csv.DictReader(stream))
    texts = [(row["query"], row["title"]) for row in rows]
    scores = Classifier.load(teacher, "cpu").score(texts).raw_score
    gains = np.array([2.0 ** int(row["grade"]) - 1 for row in rows]).reshape(-1, 4)
    differ = np.ptp(gains, axis=1) > 0
    lists = zip(gains[differ], scores.reshape(-1, 4)[differ], strict=True)
    wanted = np.mean([ndcg_score([gain], [score]) for gain, score in lists])
    assert metrics["quality"]["teacher"]["ndcg10"]["value"] == pytest.approx(wanted)
    assert set(metrics["quality"]["teacher"]) == {"ndcg10", "query_spearman"}
    assert set(metrics["quality"]["student_minus_teacher"]) == {"ndcg10", "query_spearman"}
    assert "qwk" in metrics["quality"]["student_minus_before"]
    printed = str(Taught(options.out, metrics))
    assert "the teacher's grades are not the student's: it is judged by its order alone" in printed


def test_a_column_of_scores_teaches(options: DistilOptions, tmp_path: Path, tiny_checkpoint: Path) -> None:
    """Numbers beyond 0 to 1 are an order."""

    def score(title: str) -> float:
        return 36.0 if "lamp" in title else 4.0

    rows = [(query, title, score(title)) for query, title in drawn(150)]
    data = write_pairs(tmp_path / "scored.csv", rows, "llm")
    options = replace(
        options,
        data=data,
        scores="llm",
        teacher=None,
        model=str(tiny_checkpoint),
        cut=StudentSize(),
        steps=40,
    )
    metrics = distil(options)
    titles = [title for _, title in drawn(60, seed=2)]
    got = load(options.out).score([("red lamp", title) for title in titles])
    has_lamp = np.array(["lamp" in title for title in titles])
    assert got.score[has_lamp].mean() > got.score[~has_lamp].mean() + 0.2
    assert "teacher" not in metrics["quality"]
    assert metrics["speed"]["student_times_teacher"] is None


def test_a_plain_encoder_gets_its_teacher_s_grades(options: DistilOptions, tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", seed=3)
    of_classifier = {"temperature": 2.0}  # which it no longer has
    edit_config(plain, architectures=None, id2label=None, label2id=None, headroom=of_classifier)
    tensors = load_file(plain / "model.safetensors")
    kept = {n: t for n, t in tensors.items() if not n.startswith(("classifier", "bert.pooler"))}
    save_file(kept, plain / "model.safetensors", {"format": "pt"})
    distil(replace(options, model=str(plain), cut=StudentSize(layers=1), steps=3))
    student = load(options.out)
    assert student.grades == load(Path(str(options.teacher))).grades
    assert student.num_layers == 1
    assert student.config.temperature == 1


def test_the_queries_of_the_test_are_not_trained_on(
    options: DistilOptions, judged_file: Path, tmp_path: Path
) -> None:
    tested = "  ".join(judged_file.read_text().splitlines()[1].split(",")[0].upper().split(" "))
    data = write_pairs(tmp_path / "both.csv", [*drawn(30), (tested, "a lamp"), (tested, "steel")])
    prepared = prepare(replace(options, data=data))
    assert (prepared.survey.left_out, prepared.survey.pairs) == (2, 120)
    write_pairs_of(prepared)
    written = "".join(file.read_text() for file in prepared.options.pairs.iterdir())
    assert tested not in written
    assert written.count("\n") == 120


def test_a_portion_holds_whole_queries_and_every_pair_is_in_one_part(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distil_pairs, "PORTION_PAIRS", 100)
    monkeypatch.setattr(distil_pairs, "BUFFER_BYTES", 1000)
    found = distil_pairs.survey(data, DEFAULT, None, ())
    distil_pairs.cut_into_portions(data, DEFAULT, None, (), found, tmp_path / "parts")
    parts = [distil_pairs.read_portion(file) for file in sorted((tmp_path / "parts").iterdir())]
    assert len(parts) == found.portions + 1
    assert sorted(pair[:2] for part in parts for pair in part) == sorted(drawn(150))
    queries = [{pair.query for pair in part} for part in parts]
    assert all(not one & other for one, other in combinations(queries, 2))


def test_margins_and_lists_are_those_of_the_papers() -> None:
    """Against sums over every two titles, and scipy's softmax."""
    scores, wanted = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    lists = [[0, 1, 2], [3, 4]]
    margins = []
    divergences = []
    for rows in lists:
        errors = [
            float((scores[a] - scores[b]) - (wanted[a] - wanted[b])) ** 2 for a, b in combinations(rows, 2)
        ]
        margins.append(np.mean(errors))
        p, q = (np.exp(one[rows].double().numpy()) for one in (wanted, scores))
        p, q = p / p.sum(), q / q.sum()
        divergences.append(float((p * np.log(p / q)).sum()))
    assert float(margin_mse(scores, wanted, LISTS)) == pytest.approx(np.mean(margins), rel=1e-5)
    assert float(listwise(scores, wanted, LISTS)) == pytest.approx(np.mean(divergences), rel=1e-5)


def test_the_layers_without_which_scores_hardly_change_go(
    options: DistilOptions, judged_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer passes its input on: its products are 0, and the norms between have nothing to do.

    Without a file of judged pairs, the sample judges; here a smaller one.
    """
    monkeypatch.setattr(job, "SAMPLE_TEST", judged_file)
    directory = write_checkpoint(tmp_path / "idle")
    weights = load_file(directory / "model.safetensors")
    for name, tensor in weights.items():
        if name.startswith("bert.encoder.layer.0.") and "output.dense" in name:
            weights[name] = torch.zeros_like(tensor)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    metrics = distil(replace(options, teacher=str(directory), steps=1, test=None))
    assert metrics["kept_layers"] == [1, 2]
    assert metrics["test"].keys() == load(options.out).quality.keys()
    assert "2 of 3 layers (1, 2)" in str(Taught(options.out, metrics))
    taught, source = (read_tensors(each, read_config(each)) for each in (options.out, directory))
    name = "bert.encoder.layer.{}.intermediate.dense.bias"
    torch.testing.assert_close(taught[name.format(0)], source[name.format(1)], atol=0.01, rtol=0)


def test_heads_and_units_with_small_weights_go(tiny_checkpoint: Path) -> None:
    config = read_config(tiny_checkpoint)
    tensors = dict(read_tensors(tiny_checkpoint, config))
    for layer in range(3):
        prefix = f"bert.encoder.layer.{layer}."
        output = tensors[f"{prefix}attention.output.dense.weight"].clone()
        output[:, 8:16] *= 0.01  # head 1
        tensors[f"{prefix}attention.output.dense.weight"] = output
        up = tensors[f"{prefix}intermediate.dense.weight"].clone()
        up[[3, 60]] *= 0.01
        tensors[f"{prefix}intermediate.dense.weight"] = up
    mask = kept_mask(tensors, config, StudentSize(heads=3, units=62), (0, 2))
    assert mask.skipped == (1,)
    assert mask.matrix.tolist() == [[1, 0, 1, 1], [0] * 4, [1, 0, 1, 1]]
    assert mask.units_off is not None
    assert [np.flatnonzero(row).tolist() for row in mask.units_off] == [[3, 60], [], [3, 60]]


def test_what_cannot_be_taught_is_refused_before_anything_is_written(
    options: DistilOptions, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    rows = drawn(20)
    equal = write_pairs(tmp_path / "equal.csv", [(*row, 1) for row in rows], "llm")
    nan = write_pairs(tmp_path / "nan.csv", [(*row, "nan") for row in rows], "llm")
    empty = write_pairs(tmp_path / "empty.csv", [])
    int8 = write_int8(tiny_checkpoint, tmp_path / "int8")
    by_column = replace(options, teacher=None, model=str(tiny_checkpoint))
    for wrong, kind, message in (
        (replace(by_column, data=equal, scores="llm"), ModelError, "every llm is 1, which teaches no order"),
        (replace(by_column, data=nan, scores="llm"), ModelError, "line 2: llm 'nan' is not a finite number"),
        (replace(options, data=empty), ModelError, "empty.csv holds no pairs"),
        (replace(options, cut=StudentSize(mask="*.*")), ModelError, "would remove all 12 heads"),
        (replace(options, teacher=str(int8)), UnsupportedCheckpoint, "int8 is int8, and 8-bit"),
        (replace(options, test=options.data), ModelError, "grade|column"),
    ):
        with pytest.raises(kind, match=message):
            distil(wrong)
        assert not options.out.exists()
        assert not options.work.exists()
