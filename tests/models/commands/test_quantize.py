"""`headroom quantize`, as typed at a prompt."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from headroom import Classifier
from headroom.models.api import quantized
from headroom.models.api.quantized import TOLERANCE
from headroom.models.quality.comparison import agreement
from headroom.models.quality.evaluation import Evaluation
from headroom.models.quality.graded import GradedEvaluation
from headroom.models.quality.labelled import LabelledPair, read_pairs
from headroom.models.scores import Scores
from tests.checkpoints import WORDS, random_pairs, unusual_modes, write_checkpoint
from tests.prompt import Run


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    """Pairs without grades."""
    file = tmp_path / "traffic.csv"
    file.write_text("query,title\n" + "".join(f"{query},{title}\n" for query, title in random_pairs(80)))
    return file


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    file = tmp_path / "judged.jsonl"
    rows = [
        {
            "query": " ".join(rng.choice(WORDS[:6], 1)),
            "title": " ".join(rng.choice(WORDS, 5)),
            "grade": int(rng.integers(0, 5)),
        }
        for _ in range(60)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_the_loss_that_is_printed_is_the_loss(
    run: Run, tiny_checkpoint: Path, clf: Classifier, traffic: Path, judged: Path, tmp_path: Path
) -> None:
    out = tmp_path / "int8"
    options = ("--model", str(tiny_checkpoint), "--data", str(traffic), "--test", str(judged))
    output = run("quantize", *options, "--out", str(out), "--json")
    report = json.loads(output.out)

    rows = [json.loads(line) for line in judged.read_text().splitlines()]
    pairs, labelled = [(row["query"], row["title"]) for row in rows], [LabelledPair(**row) for row in rows]
    exact = clf.score(pairs)
    int8 = Classifier.load(out, "cpu").score(pairs)
    found = report["against_float32"]
    for side, scores in (("before", exact), ("after", int8)):
        evaluation = GradedEvaluation(labelled, scores.probabilities, scores.raw_score)
        for name in ("qwk", "ndcg10", "accuracy"):
            assert found[side][name] == pytest.approx(evaluation.metrics()[name], abs=1e-6)
    assert found["change"]["qwk"]["value"] == pytest.approx(found["after"]["qwk"] - found["before"]["qwk"])
    largest = np.abs(exact.probabilities - int8.probabilities).max()
    assert found["largest_probability_difference"] == pytest.approx(largest, abs=1e-6)
    assert found["pairs"] == 60
    assert report["bytes"]["after"] < report["bytes"]["before"]
    assert not unusual_modes(out), "another user, such as the service's, cannot read it"
    assert report["speed"]["dtype"] == Classifier.load(tiny_checkpoint, "cpu").network.number_format
    assert 0 < report["speed"]["low"] <= report["speed"]["median"] <= report["speed"]["high"]
    assert ("headroom: int8 runs at" in output.err) == (report["speed"]["high"] < 1)


@pytest.mark.parametrize(("queries", "excluded"), [(400, False), (736, True)])
def test_equal_scores_of_a_few_queries_do_not_exclude_a_loss(queries: int, excluded: bool) -> None:
    """As `evaluate`: 735 queries cannot show a loss below 0.005, because it may be in others."""
    rng = np.random.default_rng(0)
    pairs = [LabelledPair(f"q{row // 5}", f"t{row}", row % 5) for row in range(5 * queries)]
    scores = Scores.from_logits(rng.standard_normal((len(pairs), 5)).astype(np.float32))
    texts = [(pair.query, pair.title) for pair in pairs]
    result = agreement(scores, scores, texts, pairs, TOLERANCE)
    assert result["change"]["qwk"].value == 0
    assert result["margin_excluded"]["qwk"] == excluded
    assert not result["test"]["passed"], "scores at random have nothing to lose"


def test_a_one_label_model_is_compared_on_the_calibration_pairs(
    run: Run, traffic: Path, tmp_path: Path
) -> None:
    source = write_checkpoint(tmp_path / "one-label", num_labels=1)
    torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    output = run(
        *("quantize", "--model", str(source), "--data", str(traffic), "--out", str(tmp_path / "int8"))
    )
    assert f" of {(source / 'pytorch_model.bin').stat().st_size / 1e6:.1f} MB" in output.out
    assert "% of two titles of a query keep their order" in output.out
    assert "keep their grade" not in output.out
    assert "on this machine, int8 runs at " in output.out
    assert "probabilities differ by" in output.out
    assert "qwk" not in output.out


def test_of_many_calibration_pairs_whole_queries_are_compared(
    run: Run, traffic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traffic of a day would be scored twice, for hours."""
    source = write_checkpoint(tmp_path / "one-label", num_labels=1)
    given = len(read_pairs(traffic))
    monkeypatch.setattr(quantized, "MAX_PAIRS", given // 2)
    arguments = ("quantize", "--model", str(source), "--data", str(traffic), "--out")
    result = json.loads(run(*arguments, str(tmp_path / "int8"), "--json").out)
    used = result["calibration_pairs"]["used"]
    assert result["calibration_pairs"]["given"] == given
    assert 0 < used <= given // 2
    assert result["against_float32"]["pairs"] == used
    monkeypatch.setattr(quantized, "MAX_PAIRS", 1)  # less than any query has
    assert f"on 1 of the {given} calibration pairs:" in run(*arguments, str(tmp_path / "other")).out


def test_columns_of_other_names_are_read(
    run: Run, tiny_checkpoint: Path, judged: Path, tmp_path: Path
) -> None:
    """There was no option that names them."""
    traffic = tmp_path / "searches.csv"
    traffic.write_text("search|name\n" + "".join(f"{query}|{title}\n" for query, title in random_pairs(30)))
    given = ("quantize", "--model", str(tiny_checkpoint), "--out", str(tmp_path / "int8"))
    named = ("--query-column", "search", "--title-column", "name", "--delimiter", "|")
    files = ("--data", str(traffic), "--test", str(judged))
    report = json.loads(run(*given, *files, *named, "--json").out)
    assert report["calibration_pairs"]["given"] == 30
    assert report["against_float32"]["pairs"] == 60
    assert "--query-column: it needs --data or --test" in run(*given, *named, status=2).err
    ungraded = run(*given, *files[:2], *named, "--grade-column", "stars", status=2)
    assert "--grade-column: it needs --test" in ungraded.err


def test_what_cannot_be_quantized_is_refused_in_one_line(
    run: Run, tiny_checkpoint: Path, traffic: Path, tmp_path: Path
) -> None:
    model = ("--model", str(tiny_checkpoint))
    ungraded = run("quantize", *model, "--test", str(traffic), "--out", str(tmp_path / "int8"), status=1)
    assert "there is no column grade" in ungraded.err
    assert not (tmp_path / "int8").exists()


def test_int8_of_a_one_label_model_is_judged_by_its_order(
    run: Run, traffic: Path, judged: Path, tmp_path: Path
) -> None:
    source = write_checkpoint(tmp_path / "one-label", num_labels=1)
    out = tmp_path / "int8"
    files = ("--data", str(traffic), "--test", str(judged))
    output = run("quantize", "--model", str(source), *files, "--out", str(out))
    rows = [json.loads(line) for line in judged.read_text().splitlines()]
    labelled = [LabelledPair(**row) for row in rows]
    pairs = [(pair.query, pair.title) for pair in labelled]
    before, after = (
        Evaluation(labelled, Classifier.load(path, "cpu", dtype).score(pairs).raw_score).metrics()["ndcg10"]
        for path, dtype in ((source, "float32"), (out, "auto"))
    )
    (line,) = [line.split() for line in output.out.splitlines() if line.split()[:1] == ["ndcg10"]]
    assert line[1:4] == [f"{before:.4f}", "→", f"{after:.4f}"]
    assert " of NDCG@10 (change " in output.out
    assert "% of two titles of a query keep their order" in output.out
    assert "keep their grade" not in output.out
