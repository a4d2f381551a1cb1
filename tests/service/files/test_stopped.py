"""Jobs that are stopped at any step of writing, or write one output at the same time."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headroom.models.errors import ModelError
from headroom.service.files.parts import Part, Parts
from headroom.service.files.storage import Storage
from tests.service.files.killed import arguments, score_all

STEPS = ("create", "remove")

KILLED = """
import os, sys
from headroom.service.files.storage import Storage

with Storage(sys.argv[1]).create(sys.argv[1]) as stream:
    stream.write(bytes(1000))
    stream.flush()
    os._exit(9)
"""
"""Writes half a file, and ends as by SIGKILL."""


class Stopped(BaseException):
    """What a test stops a job with."""


class Stops:
    """Stops a job before its nth step that writes. A directory to remove has lost one file by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self._count = 0
        for name in STEPS:
            monkeypatch.setattr(Storage, name, self._wrapped(getattr(Storage, name), name))

    def _wrapped(self, step: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapped(storage: Storage, *names: str) -> Any:
            if self.left is None:
                return step(storage, *names)
            self.left -= 1
            self._count += 1
            if self.left:
                return step(storage, *names)
            self.left = None
            if name == "remove" and (files := storage.files(names[0])):
                storage.remove(files[0])
            raise Stopped if self._count % 2 else OSError("no more space")

        return wrapped


def score(source: Path, output: object, model: Path, *, overwrite: bool) -> None:
    job = arguments(source, output, model, overwrite=overwrite)  # type: ignore[arg-type]
    score_all(job, lambda *_: None, window_rows=2)


@pytest.mark.parametrize(("in_store", "overwrite"), [(False, True), (True, False)])
def test_the_same_command_ends_a_job_that_was_stopped_at_any_step(
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_store: bool,
    overwrite: bool,
) -> None:
    source, expected = tmp_path / "in.csv", tmp_path / "expected.csv"
    rows = "".join(f"wood lamp,lamp {row}\n" for row in range(6))
    source.write_text(f"query,title\n{rows}no,such,pair\n")
    score(source, expected, tiny_checkpoint, overwrite=False)
    rejects = Path(f"{expected}.rejects.jsonl").read_bytes()

    stops = Stops(monkeypatch)
    for step in range(1, 100):
        output = tmp_path / str(step) / "out.csv"
        output.parent.mkdir()
        if overwrite:
            output.write_text("old")
        name = output.as_uri() if in_store else output
        stops.left = step
        try:
            score(source, name, tiny_checkpoint, overwrite=overwrite)
        except (Stopped, ModelError):
            score(source, name, tiny_checkpoint, overwrite=overwrite)  # not "exists; choose another" either
        assert output.read_bytes() == expected.read_bytes(), step
        assert Path(f"{output}.rejects.jsonl").read_bytes() == rejects
        assert not list(output.parent.glob("*.parts*"))
        if stops.left is not None:
            break
    assert stops.left is not None
    assert step > 8


@pytest.mark.parametrize("mask", [None, "0.*"])
def test_a_run_whose_parts_another_one_took_writes_nothing(
    tiny_checkpoint: Path, tmp_path: Path, mask: str | None
) -> None:
    """The other run has the same plan, or replaces the parts by its own."""
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("query,title\n" + "".join(f"wood lamp,red lamp {row}\n" for row in range(6)))
    written = []

    def overtake(_share: float, rows: int, _before: int) -> None:
        if rows == 5:
            other = arguments(source, output, tiny_checkpoint, mask=mask, overwrite=mask is not None)
            score_all(other, lambda *_: None, window_rows=1)
            written.append(output.read_bytes())

    with pytest.raises(ModelError, match="another run has removed parts of this one"):
        score_all(arguments(source, output, tiny_checkpoint), overtake, window_rows=1)
    assert output.read_bytes() == written[0]


@pytest.mark.parametrize("in_store", [False, True])
def test_a_part_of_another_plan_that_comes_late_is_not_taken(tmp_path: Path, in_store: bool) -> None:
    output = (tmp_path / "out.csv").as_uri() if in_store else str(tmp_path / "out.csv")
    ours, late = Parts(output, {"mask": "0.*"}), Parts(output, {"mask": "none"})
    ours.take_over(overwrite=False)
    late.keep(Part(0, 1, 0), b"late\n", b"")  # this run had looked who owns the parts just before
    assert ours.done() == {}
    ours.keep(Part(0, 1, 0), b"ours\n", b"")
    (part,) = ours.done().values()
    with ours.storage.open(ours.part_path(part)) as stream:
        assert stream.read() == b"ours\n"


def test_two_runs_that_write_one_part_never_cut_each_other_s_short(tmp_path: Path) -> None:
    """The first one's end gave the other one's draft the name of a finished part."""
    part = str(tmp_path / "0.part")
    storage = Storage(part)

    def write_beside_another() -> None:
        with storage.create(part) as slow:
            slow.write(b"half")
            slow.flush()
            with storage.create(part) as quick:
                quick.write(b"whole part")
            storage.remove_drafts(part)  # those of killed runs only
            raise Stopped

    with pytest.raises(Stopped):
        write_beside_another()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"0.part": b"whole part"}


def test_what_a_killed_run_was_writing_is_gone_after_the_next_one(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("query,title\nwood lamp,red lamp\n")
    (tmp_path / "out.csv.parts").mkdir()
    plan = tmp_path / "out.csv.parts" / "plan.json"
    for name in (output, Path(f"{output}.rejects.jsonl"), Path(f"{output}.parts.published"), plan):
        killed = subprocess.run([sys.executable, "-c", KILLED, name], check=False)
        assert killed.returncode == 9
    assert len(list(tmp_path.rglob("*.writing"))) == 4
    written = Storage(str(output))
    with written.create(f"{output}.gz") as of_another_job:
        score(source, output, tiny_checkpoint, overwrite=False)
        of_another_job.write(b"done")
    assert {file.name for file in tmp_path.iterdir()} == {"in.csv", "out.csv", "out.csv.gz"}
