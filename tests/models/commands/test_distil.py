"""`headroom distil`, as typed at a prompt."""

import json
from pathlib import Path

import pytest

from headroom import Classifier
from tests.checkpoints import unusual_modes, write_checkpoint
from tests.prompt import Run
from tests.teaching import judged as judged
from tests.teaching import pairs as pairs

pytestmark = pytest.mark.more


def test_a_student_is_written_and_its_table_has_intervals(
    run: Run, tiny_checkpoint: Path, pairs: Path, judged: Path, tmp_path: Path
) -> None:
    out = tmp_path / "half"
    student = ("--teacher", str(tiny_checkpoint), "--layers", "2", "--heads", "3", "--out", str(out))
    taught = run(
        *("distil", "--data", str(pairs), "--test", str(judged), "--steps", "5", "--device", "cpu", *student)
    )
    lines = taught.out.splitlines()
    metrics = json.loads((out / "metrics.json").read_text())
    kept = ", ".join(map(str, metrics["kept_layers"]))
    assert lines[0] == f"{out}: {metrics['against_teacher']['verdict']}"
    assert lines[1].startswith(f"2 of 3 layers ({kept}), 6 of 12 heads, 128 of 192 units, 0.")
    rows = {line.split("  ")[1]: line for line in lines if line.startswith("  ")}
    lost = metrics["quality"]["student_minus_teacher"]["ndcg10"]
    assert f"{lost['value']:+.3f}".replace("-", "−") in rows["NDCG@10"].replace("-", "−")
    assert {"QWK", "Spearman within queries"} <= rows.keys()
    assert "times as fast" in lines[-1]
    assert Classifier.load(out).num_layers == 2
    assert not unusual_modes(out), "another user, such as the service's, cannot read it"

    scored = run("score", "lamp 3", "a lamp", "wood", "--model", str(out))
    assert len(scored.out.splitlines()) == 2


@pytest.mark.parametrize("teaches", ["model", "column"])
def test_a_student_is_measured_beside_the_checkpoint_that_it_was_cut_from(
    run: Run, tiny_checkpoint: Path, pairs: Path, tmp_path: Path, teaches: str
) -> None:
    """It was "5 of 3 layers, 20 of 12 heads", or with a column "5 of 5 layers". A layer of these checkpoints
    has 4 heads and 64 units; the teacher has 3 layers, the student is cut from 6."""
    six = write_checkpoint(tmp_path / "six", seed=2, num_hidden_layers=6)
    lines = pairs.read_text().splitlines()
    scored = [f"{line}\t{'llm' if row == 0 else row % 7}" for row, line in enumerate(lines)]
    pairs.write_text("\n".join(scored) + "\n")
    teacher = ("--teacher", str(tiny_checkpoint)) if teaches == "model" else ("--scores", "llm")
    given = (*("--data", str(pairs), "--model", str(six), "--steps", "1", "--device", "cpu"), *teacher)

    cut = run("distil", *given, "--layers", "5", "--out", str(tmp_path / "cut")).out
    metrics = json.loads((tmp_path / "cut" / "metrics.json").read_text())
    kept = ", ".join(map(str, metrics["kept_layers"]))
    of_six = f"5 of 6 layers ({kept}), 20 of 24 heads, 320 of 384 units, "
    verdict = f"{metrics['against_teacher']['verdict']}\n" if teaches == "model" else ""
    assert cut.startswith(f"{tmp_path / 'cut'}: {verdict}{of_six}")
    source = metrics["size"]["source"]
    weights = (six / "model.safetensors").stat().st_size
    assert source == {"layers": 6, "heads": 24, "units": 384, "bytes": weights}
    of_teacher = (tiny_checkpoint / "model.safetensors").stat().st_size / 1e6
    assert (f" of {weights / 1e6:.1f} MB (the teacher: {of_teacher:.1f} MB);" in cut) == (teaches == "model")

    whole = run("distil", *given, "--out", str(tmp_path / "whole")).out
    metrics = json.loads((tmp_path / "whole" / "metrics.json").read_text())
    verdict = f"{metrics['against_teacher']['verdict']}\n" if teaches == "model" else ""
    assert whole.startswith(f"{tmp_path / 'whole'}: {verdict}6 layers, 24 heads, 384 units, ")
