"""A training that is killed at any of its writes goes on when it is started again, to the same weights."""

import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from headroom.models.training import loop
from tests.prompt import Run, write_labelled
from tests.prompt import run as run

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.more]

CHANGES = ("mkdir", "remove", "rename", "replace", "rmdir", "unlink")
"""The functions of `os` after which another file or directory is there. A state is written to a new file
first, and counts from its renaming on."""


def contents_of(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a directory, and "" for each directory."""
    return {
        str(path.relative_to(directory)): sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in directory.rglob("*")
    }


def copy_at_each_change(patch: pytest.MonkeyPatch, directory: Path, copies: Path) -> list[Path]:
    """Copy a directory before each change in it: this is what a run leaves that is killed there.

    Returns the copies, to which later changes add. Equal ones are there once.
    """
    made: list[Path] = []
    seen: list[dict[str, str]] = []
    copying = False

    def copy() -> None:
        nonlocal copying
        copying = True
        contents = contents_of(directory)
        if contents not in seen:
            seen.append(contents)
            made.append(copies / str(len(made)))
            shutil.copytree(directory, made[-1])
        copying = False

    def watched(change: Callable[..., None]) -> Callable[..., None]:
        def first_copy(*arguments: Any, **options: Any) -> None:
            if not copying:
                copy()
            change(*arguments, **options)

        return first_copy

    copies.mkdir()
    for name in CHANGES:
        patch.setattr(os, name, watched(getattr(os, name)))
    return made


def kill_everywhere(run: Run, monkeypatch: pytest.MonkeyPatch, root: Path, *command: str) -> None:
    """Run a command, and run it again from what it would have left if it had been killed at any write."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)  # the state is written after each step
    directory = root / "made"
    directory.mkdir()
    out = directory / "out"
    with monkeypatch.context() as patch:
        killed = copy_at_each_change(patch, directory, root / "copies")
        run(*command, "--out", str(out))
    weights = (out / "model.safetensors").read_bytes()
    assert len(killed) > 10
    for copy in killed:
        shutil.rmtree(directory)
        shutil.copytree(copy, directory)
        if not out.exists():
            run(*command, "--out", str(out))
            assert [path.name for path in directory.iterdir()] == ["out"], copy.name
        assert (out / "metrics.json").exists(), copy.name
        assert (out / "model.safetensors").read_bytes() == weights, copy.name


def test_a_training(run: Run, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"lamp {i}", title, grade) for i in range(12) for title, grade in (("a lamp", 1), ("wood", 0))]
    data = write_labelled(tmp_path / "pairs.csv", rows)
    options = ("--model", str(tiny_checkpoint), "--labels", "no,yes", "--epochs", "2", "--device", "cpu")
    kill_everywhere(run, monkeypatch, tmp_path, "train", "--data", str(data), *options)
