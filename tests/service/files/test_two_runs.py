"""Two runs that write one output at the same time, as on two machines: an object store has no locks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.errors import ModelError
from service.files.parts import Part, Parts
from tests.service.files.killed import arguments, score_all

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


def score(
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
            score(source, name, tiny_checkpoint)

    with pytest.raises(ModelError, match=LOST):
        score(source, name, tiny_checkpoint, overtake)
    assert sorted(path.name for path in output.iterdir()) == ["_SUCCESS", "a.csv", "b.csv"]
    assert not (tmp_path / "out.parts").exists()


def test_a_run_that_is_replaced_puts_nothing_into_the_other_s_output(
    tiny_checkpoint: Path, tmp_path: Path, source: Path
) -> None:
    score(source, str(tmp_path / "expected"), tiny_checkpoint, masks=("0.*",))
    output = tmp_path / "out"
    waits, goes_on = threading.Event(), threading.Event()
    errors: list[str] = []

    def wait(_: int) -> None:
        waits.set()
        assert goes_on.wait(120)

    def first() -> None:
        try:
            score(source, output.as_uri(), tiny_checkpoint, wait)
        except ModelError as error:
            errors.append(str(error))

    thread = threading.Thread(target=first)
    thread.start()
    assert waits.wait(120)

    def let_the_first_go_on(rows: int) -> None:
        if rows == ROWS:
            goes_on.set()
            thread.join()

    score(source, output.as_uri(), tiny_checkpoint, let_the_first_go_on, masks=("0.*",), overwrite=True)
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
