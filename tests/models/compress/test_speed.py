"""A user hears where int8 does not pay: by the figure that was measured, or else by rule."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from models import Classifier
from models.checkpoint.config import read_config
from models.compress import speed
from models.compress.speed import Speed, doubt, measure
from tests.checkpoints import WORDS

PAIRS = [(word, " ".join(WORDS[place : place + 5])) for place, word in enumerate(WORDS)]
SLOW = Speed("bfloat16", 0.89, 0.8, 0.95)


def test_the_figure_is_measured_in_turns(tiny_checkpoint: Path, int8_checkpoint: Path) -> None:
    floats, integers = (
        Classifier.load(tiny_checkpoint, "cpu", "float32"),
        Classifier.load(int8_checkpoint, "cpu"),
    )
    found = measure(floats, integers, floats.tokenizer.encode(PAIRS[:4]))

    assert 0 < found.low <= found.median <= found.high
    assert found.dtype == "float32"


@pytest.mark.parametrize(
    ("bits", "features", "hidden", "measured", "reason"),
    [
        (0, ["avx2"], 768, None, "float products stand in"),
        (8, ["avx2", "avx512", "amx"], 192, None, "gains little on AMX"),
        (8, ["avx2", "avx512", "amx"], 768, None, None),
        (7, ["avx2"], 192, None, None),
        (8, ["avx2"], 768, SLOW, "0.89 × bfloat16 (0.80 to 0.95)"),
        (8, ["avx2"], 768, replace(SLOW, median=1.2), None),
    ],
)
def test_the_figure_decides_or_else_a_rule(
    int8_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    bits: int,
    features: list[str],
    hidden: int,
    measured: Speed | None,
    reason: str | None,
) -> None:
    monkeypatch.setattr(speed, "input_bits", lambda: bits)
    monkeypatch.setattr(speed, "processor_features", lambda: features)
    notice = doubt(replace(read_config(int8_checkpoint), hidden_size=hidden), measured)
    assert notice is None if reason is None else reason in str(notice)


def test_the_log_of_a_start_says_it(
    int8_checkpoint: Path,
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(speed, "input_bits", lambda: 0)
    with caplog.at_level(logging.WARNING, "headroom.model"):
        speed.warn_if_slow(Classifier.load(tiny_checkpoint, "cpu"))
        assert not caplog.messages
        speed.warn_if_slow(Classifier.load(int8_checkpoint, "cpu"))
    assert ["int8 is slower than" in message for message in caplog.messages] == [True]
