"""No file imports itself by way of others, not inside functions, and not for its types either."""

import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]


def circles(imports: Mapping[str, Set[str]]) -> Iterator[set[str]]:
    """Yield each set of files that all reach one another. imports: the files that each one imports.

    Tarjan (1972), "Depth-first search and linear graph algorithms".
    """
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []

    def visit(file: str) -> Iterator[set[str]]:
        numbers[file] = lowest[file] = len(numbers)
        path.append(file)
        for imported in sorted(imports[file]):
            if imported not in numbers:
                yield from visit(imported)
            if imported in path:
                lowest[file] = min(lowest[file], lowest[imported])
        if lowest[file] == numbers[file]:
            index = path.index(file)
            component = set(path[index:])
            del path[index:]
            if len(component) > 1:
                yield component

    for file in imports:
        if file not in numbers:
            yield from visit(file)


def test_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    graph = grimp.build_graph("headroom", "benchmarks", "default_model", cache_dir=None)
    imports = {file: graph.find_modules_directly_imported_by(file) for file in graph.modules}
    assert len(imports) > 300
    assert list(circles(imports)) == []
