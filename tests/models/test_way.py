"""The way of a pair through the code stays short enough to read in one sitting."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import models
from models import Classifier, HeadMask
from models.batch import pack

ROOT = str(Path(models.__file__).parent)


def way(call: Callable[[], object]) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the files of models/ whose functions a call runs, and these functions."""
    functions: set[tuple[str, str]] = set()

    def seen(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and not code.co_name.startswith("<"):
            functions.add((code.co_filename.removeprefix(ROOT), code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(before)
    return {file for file, _ in functions}, functions


def test_a_score_passes_few_files_and_functions(tiny_checkpoint: Path) -> None:
    clf = Classifier.load(tiny_checkpoint, "cpu")
    mask = HeadMask.parse("2.3,1.*", layers=3, heads=4)
    for _ in range(3):  # weights are copied when a mask comes again
        clf.score([("angle", "bracket")], mask)
    files, functions = way(lambda: clf.score([("angle bracket", "steel screws")], mask))
    assert len(files) <= 10, sorted(files)
    assert len(functions) <= 73, sorted(functions)

    batch = pack(clf.tokenizer.encode([("angle bracket", "steel screws")]), device=clf.network.device)
    files, functions = way(lambda: clf.network.forward(batch))
    assert len(files) <= 6, sorted(files)
    assert len(functions) <= 38, sorted(functions)
