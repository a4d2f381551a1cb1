"""A checkpoint's digest: it changes with the checkpoint, and with nothing else that lies in its directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from models.checkpoint.files import bytes_of_weights, digest_of
from tests.modernberts import write_ettin


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "model"))


def test_a_file_that_is_not_loaded_changes_nothing(checkpoint: Path) -> None:
    """Who works in the model's directory (`--model .`) has input, output and reports in it, which grow."""
    before, size = digest_of(checkpoint), bytes_of_weights(checkpoint)
    for name in ("pairs.json", "notes.txt", "head_study.json", "metrics.json", "2026_runs/config.json"):
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_text("{}")
    (checkpoint / "2026_runs" / "model.safetensors").write_bytes(b"of another model")
    assert (digest_of(checkpoint), bytes_of_weights(checkpoint)) == (before, size)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_that_is_loaded_changes_it(checkpoint: Path, name: str) -> None:
    before = digest_of(checkpoint)
    with (checkpoint / name).open("ab") as stream:
        stream.write(b" ")
    assert digest_of(checkpoint) != before


def test_the_files_of_modules_count(tmp_path: Path) -> None:
    checkpoint, _, _ = write_ettin(tmp_path)
    before, size = digest_of(checkpoint), bytes_of_weights(checkpoint)
    weights = sorted(checkpoint.glob("[0-9]*_*/model.safetensors"))
    assert weights
    for file in [*weights, *checkpoint.glob("[0-9]*_*/config.json")]:
        with file.open("ab") as stream:
            stream.write(b" ")
        assert digest_of(checkpoint) != before
        before = digest_of(checkpoint)
    assert bytes_of_weights(checkpoint) == size + len(weights)
