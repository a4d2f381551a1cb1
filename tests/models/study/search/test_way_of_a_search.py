"""How many files of ours `headroom study search` goes through: what its reader must hold."""

import inspect
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

import headroom.service.cli.program  # noqa: F401  # what runs while it is imported is no part of the way
from tests.models.study.planted import planted_pairs, write_planted
from tests.prompt import Run

ROOT = Path(__file__).parents[4]
ROOMS = tuple(f"{ROOT / room}/" for room in ("service", "models", "src"))

OF_THE_NETWORK = tuple(
    f"models/{name}"
    for name in (
        *("checkpoint/", "generate/", "masks/", "ops/"),
        *("batch", "classifier", "cores", "device", "frame", "given", "layer", "lru"),
        *("network.", "networks.", "scores", "selection", "weight_cache", "weights"),
    )
)
"""How the names of the files in models/ begin that read a checkpoint and score pairs under masks: they are
the same for every command."""

MAX_FILES = 33


@pytest.fixture
def begun() -> Iterator[set[CodeType]]:
    """The code that begins while a test runs, on every thread."""
    begun: set[CodeType] = set()

    def note(frame: FrameType, *_: object) -> None:  # returns None: no line is traced
        begun.add(frame.f_code)

    before = sys.gettrace()
    threading.settrace(note)
    sys.settrace(note)
    yield begun
    sys.settrace(before)
    threading.settrace(None)  # type: ignore[arg-type]


@pytest.mark.more
def test_a_search_goes_through_few_files(begun: set[CodeType], run: Run, tmp_path: Path) -> None:
    arguments = ["--model", str(write_planted(tmp_path / "model")), "--dtype", "float32"]
    for option, queries, titles in (("data", 20, 4), ("holdout", 250, 2)):
        pairs = planted_pairs(queries, titles, seed=titles)
        rows = [json.dumps({"query": pair.query, "title": pair.title, "grade": pair.grade}) for pair in pairs]
        (tmp_path / f"{option}.jsonl").write_text("\n".join(rows))
        arguments += [f"--{option}", str(tmp_path / f"{option}.jsonl")]
    run("study", "search", *arguments, "--quick", "--margin", "0.3", "--out", str(tmp_path / "out"))
    assert (tmp_path / "out" / "mask.json").exists()
    sys.settrace(None)
    names = set()
    for code in begun:
        if code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or class is not
            names.add(Path(code.co_filename).resolve().as_posix())
    files = {
        name.removeprefix(f"{ROOT}/") for name in names if name.startswith(ROOMS) and name.endswith(".py")
    }
    assert {"models/study/search/compute.py", "models/study/runner.py", "models/network.py"} <= files
    of_the_study = sorted(name for name in files if not name.startswith(OF_THE_NETWORK))
    assert len(of_the_study) <= MAX_FILES, of_the_study
