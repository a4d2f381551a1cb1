"""Jobs that are stopped at any step of writing, or write one output at the same time, as on two machines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.errors import ModelError
from service.files.parts import Part, Parts
from service.files.storage import Storage
from tests.service.files.killed import arguments, score_all

STEPS = ("create", "remove")


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


def tree(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def score(source: Path, output: object, model: Path, *, overwrite: bool) -> None:
    job = arguments(source, output, model, overwrite=overwrite)  # type: ignore[arg-type]
    score_all(job, lambda *_: None, window_rows=2)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("in_store", [False, True])
@pytest.mark.parametrize("ending", ["", ".csv"])
def test_the_same_command_ends_a_job_that_was_stopped_at_any_step(
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    in_store: bool,
    overwrite: bool,
) -> None:
    source = tmp_path / f"in{ending}"
    files = [source] if ending else [source / "a.csv", source / "b.csv"]
    for number, file in enumerate(files):
        file.parent.mkdir(exist_ok=True)
        rows = "".join(f"wood lamp,lamp {number} {row}\n" for row in range(3))
        file.write_text(f"query,title\n{rows}no,{number},pair\n")
    score(source, tmp_path / f"expected{ending}", tiny_checkpoint, overwrite=False)
    rejects = (tmp_path / f"expected{ending}.rejects.jsonl").read_bytes()

    stops = Stops(monkeypatch)
    refused = 0
    for step in range(1, 100):
        output = tmp_path / str(step) / f"out{ending}"
        output.parent.mkdir()
        if overwrite and ending:
            output.write_text("old")
        elif overwrite:
            output.mkdir()
            for name in ("a.csv", "old.csv", "_SUCCESS"):
                (output / name).write_text("old")
        name = output.as_uri() if in_store else output
        stops.left = step
        try:
            score(source, name, tiny_checkpoint, overwrite=overwrite)
        except (Stopped, ModelError):
            try:
                score(source, name, tiny_checkpoint, overwrite=overwrite)
            except ModelError as problem:
                if "exists; choose another --output" not in str(problem):
                    raise
                refused += 1  # the first run had nothing left to do
        if ending:
            assert output.read_bytes() == (tmp_path / f"expected{ending}").read_bytes(), step
        else:
            assert tree(output) == tree(tmp_path / "expected"), step
        assert Path(f"{output}.rejects.jsonl").read_bytes() == rejects
        assert refused or not Path(f"{output}.parts").exists()
        if stops.left is not None:
            break
    assert stops.left is not None
    assert step > 8
    assert refused <= 1


LOST = "another run of this output has begun or has ended meanwhile"
ROWS = 6


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "in"
    directory.mkdir()
    for name in ("a.csv", "b.csv"):
        rows = "".join(f"wood lamp,red lamp {row}\n" for row in range(ROWS // 2))
        (directory / name).write_text(f"query,title\n{rows}")
    return directory


def score_rows(
    source: Path, output: str, model: Path, report: Callable[[int], None] = lambda _: None, **options: Any
) -> None:
    """Score the source in windows of one row. report: takes the number of rows that are done."""
    job = arguments(source, output, model, **options)  # type: ignore[arg-type]
    score_all(job, lambda _share, rows, _before: report(rows), window_rows=1)


def scores(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.glob("*.csv")}


@pytest.mark.parametrize("in_store", [False, True])
def test_a_run_that_is_overtaken_leaves_the_other_s_output(
    tiny_checkpoint: Path, tmp_path: Path, source: Path, in_store: bool
) -> None:
    output = tmp_path / "out"
    name = output.as_uri() if in_store else str(output)

    def overtake(rows: int) -> None:
        if rows == ROWS:
            score_rows(source, name, tiny_checkpoint)

    with pytest.raises(ModelError, match=LOST):
        score_rows(source, name, tiny_checkpoint, overtake)
    assert sorted(path.name for path in output.iterdir()) == ["_SUCCESS", "a.csv", "b.csv"]
    assert not (tmp_path / "out.parts").exists()


def test_a_run_that_is_replaced_puts_nothing_into_the_other_s_output(
    tiny_checkpoint: Path, tmp_path: Path, source: Path
) -> None:
    score_rows(source, str(tmp_path / "expected"), tiny_checkpoint, masks=("0.*",))
    output = tmp_path / "out"
    waits, goes_on = threading.Event(), threading.Event()
    errors: list[str] = []

    def wait(_: int) -> None:
        waits.set()
        assert goes_on.wait(120)

    def first() -> None:
        try:
            score_rows(source, output.as_uri(), tiny_checkpoint, wait)
        except ModelError as error:
            errors.append(str(error))

    thread = threading.Thread(target=first)
    thread.start()
    assert waits.wait(120)

    def let_the_first_go_on(rows: int) -> None:
        if rows == ROWS:
            goes_on.set()
            thread.join()

    score_rows(source, output.as_uri(), tiny_checkpoint, let_the_first_go_on, masks=("0.*",), overwrite=True)
    assert [LOST in error for error in errors] == [True]
    assert scores(output) == scores(tmp_path / "expected")
    assert not (tmp_path / "out.parts").exists()


@pytest.mark.parametrize("in_store", [False, True])
def test_a_part_of_another_plan_that_comes_late_is_not_taken(tmp_path: Path, in_store: bool) -> None:
    output = (tmp_path / "out.csv").as_uri() if in_store else str(tmp_path / "out.csv")
    ours, late = Parts(output, {"mask": "0.*"}), Parts(output, {"mask": "none"})
    ours.begin()
    late.keep(Part(0, 0, 1, 0), b"late\n", b"")  # this run had looked who owns the parts just before
    assert ours.done() == {}
    ours.keep(Part(0, 0, 1, 0), b"ours\n", b"")
    (part,) = ours.done().values()
    with ours.storage.open(ours.part_path(part)) as stream:
        assert stream.read() == b"ours\n"
