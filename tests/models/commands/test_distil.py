"""`headroom distil`, as typed at a prompt."""

import json
from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint
from tests.prompt import Run
from tests.teaching import judged as judged
from tests.teaching import pairs as pairs

pytestmark = pytest.mark.more


def test_a_column_teaches_a_student_that_is_measured_beside_the_checkpoint_that_it_was_cut_from(
    run: Run, pairs: Path, judged: Path, tmp_path: Path
) -> None:
    """It was "5 of 5 layers". A layer of these checkpoints has 4 heads and 64 units."""
    six = write_checkpoint(tmp_path / "six", seed=2, num_hidden_layers=6)
    lines = pairs.read_text().splitlines()
    scored = [f"{line}\t{'llm' if row == 0 else row % 7}" for row, line in enumerate(lines)]
    pairs.write_text("\n".join(scored) + "\n")
    given = ("--data", str(pairs), "--model", str(six), "--steps", "1", "--device", "cpu", "--scores", "llm")

    out = ("--test", str(judged), "--out", str(tmp_path / "cut"))
    cut = run("distil", *given, "--layers", "5", *out).out
    metrics = json.loads((tmp_path / "cut" / "metrics.json").read_text())
    kept = ", ".join(map(str, metrics["kept_layers"]))
    assert cut.startswith(f"{tmp_path / 'cut'}: 5 of 6 layers ({kept}), 20 of 24 heads, 320 of 384 units, ")
    weights = (six / "model.safetensors").stat().st_size
    assert metrics["size"]["source"] == {"layers": 6, "heads": 24, "units": 384, "bytes": weights}
