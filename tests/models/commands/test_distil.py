"""`headroom distil`, as typed at a prompt."""

import json
from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint
from tests.prompt import Run
from tests.teaching import judged as judged
from tests.teaching import pairs as pairs

pytestmark = pytest.mark.more


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
