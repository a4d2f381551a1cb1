"""A user hears how fast int8 is here."""

from pathlib import Path

from models.compress.speed import measure
from tests.checkpoints import load, random_pairs


def test_the_figure_is_measured_in_turns(tiny_checkpoint: Path, int8_checkpoint: Path) -> None:
    floats, integers = load(tiny_checkpoint), load(int8_checkpoint)
    found = measure(floats, integers, floats.tokenizer.encode(random_pairs(4)))

    assert 0 < found.low <= found.median <= found.high
    assert found.dtype == "float32"
