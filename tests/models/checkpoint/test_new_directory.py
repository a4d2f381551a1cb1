"""A new checkpoint is whole or not there, whenever the command that writes it is killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from headroom.models.checkpoint.files import check_empty, new_directory, put_in_place
from headroom.models.errors import ModelError

NAMES = ("config.json", "model.safetensors", "vocab.txt")

KILLED = """
import os, shutil, sys
from pathlib import Path
from headroom.models.checkpoint.files import new_directory, put_in_place

moves = int(sys.argv[3])
move = shutil.move

def moved(*names):
    global moves
    if not moves:
        os._exit(9)  # as SIGKILL: nothing is cleaned up
    moves -= 1
    return move(*names)

shutil.move = moved
put_in_place(Path(sys.argv[1]), Path(sys.argv[2]))
"""
"""Puts a draft in place, and is killed before the move of this number."""


def drafted(directory: Path) -> Path:
    directory.mkdir()
    for name in NAMES:
        (directory / name).write_text(name)
    return directory


def names_in(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}


@pytest.mark.parametrize("moves", range(5))
def test_a_kill_leaves_no_half_checkpoint_in_a_mounted_volume(tmp_path: Path, moves: int) -> None:
    target = tmp_path / "volume"
    target.mkdir()
    draft = drafted(tmp_path / "draft")
    killed = subprocess.run([sys.executable, "-c", KILLED, draft, target, str(moves)], check=False)
    assert killed.returncode == (0 if moves == 4 else 9)
    if (target / "config.json").exists():
        assert names_in(target) == {*NAMES}
        return
    if moves > 1:  # some files are there
        with pytest.raises(
            ModelError, match="volume holds half a checkpoint of a run that was killed; empty it"
        ):
            check_empty(target)
        return
    check_empty(target)
    with new_directory(target) as other:  # the same command once more
        drafted(other)
    assert names_in(target) == {*NAMES}  # and not the draft of the killed one


def test_a_directory_that_was_filled_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    target = tmp_path / "mine"

    def write_late() -> None:
        with new_directory(target) as draft:
            drafted(draft)
            put_in_place(drafted(tmp_path / "other"), target)
            (draft / "config.json").write_text("late")

    with pytest.raises(ModelError, match="not empty"):
        write_late()
    assert (target / "config.json").read_text() == "config.json"


def test_a_file_is_no_directory_to_write_and_holds_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path / "file", tmp_path / "file" / "new"):
        with pytest.raises(ModelError, match="file is a file; name a directory"):
            check_empty(target)
