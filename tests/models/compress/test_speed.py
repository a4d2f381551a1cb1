"""A user hears how fast int8 is here."""

from pathlib import Path

from models import Classifier
from models.compress.speed import measure
from tests.checkpoints import WORDS

PAIRS = [(word, " ".join(WORDS[place : place + 5])) for place, word in enumerate(WORDS)]


def test_the_figure_is_measured_in_turns(tiny_checkpoint: Path, int8_checkpoint: Path) -> None:
    floats, integers = (
        Classifier.load(tiny_checkpoint, "cpu", "float32"),
        Classifier.load(int8_checkpoint, "cpu"),
    )
    found = measure(floats, integers, floats.tokenizer.encode(PAIRS[:4]))

    assert 0 < found.low <= found.median <= found.high
    assert found.dtype == "float32"
