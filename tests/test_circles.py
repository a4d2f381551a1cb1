"""No file imports itself by way of others, not inside functions, and not for its types either."""

import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]


def test_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    graph = grimp.build_graph("headroom", "benchmarks", "default_model", cache_dir=None)
    imports = {file: graph.find_modules_directly_imported_by(file) for file in graph.modules}
    assert len(imports) > 300
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the files of a circle
