"""Holds what a linter does not: how much a reader must keep in mind. `make check` runs it.

    python -m tests.read_once

Four rules, over the code that is shipped and the benchmarks. Unrelated values are not packed into one
assignment (`a, b = x, y`): at most PACKED for 1,000 lines of code in each room. Few functions have more than
LARGE syntax nodes. No file has more than LONG lines. A docstring explains its own arguments: it does not send
its reader to another function (BY_ANOTHER).
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKED = 2.0
LARGE = 400
LONG = 500
LARGE_FUNCTIONS = {"service": 6, "models": 8, "loadtest": 2, "benchmarks": 4, "default_model": 4}
"""How many functions of each room may have more than LARGE syntax nodes."""

BY_ANOTHER = re.compile(
    r"\w: as (?:in |of )?(?:`|[A-Z])"  # mask: as `forward` takes it
    r"|\b(?:Return|Returns|Yield|Yields) what `[^`]+` does\b|\bDo `"
    r"|\bfunction of (?:this|the same) name\b"
    r"|\bas `[\w.]+` (?:does|takes|has)\b"
    r"|\bthe same of\b|\blikewise\b|\bas there(?! (?:is|are)\b)"
)
"""Phrases that explain an argument, a result or an error by another function."""

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def packed(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each assignment of several values to several names."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
            continue
        if any(isinstance(target, ast.Tuple) for target in node.targets):
            yield node.lineno


def large(tree: ast.AST) -> Iterator[tuple[int, Function]]:
    """Yield the functions of more than LARGE syntax nodes, with that number."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            nodes = sum(1 for _ in ast.walk(node))
            if nodes > LARGE:
                yield nodes, node


def explained_by_another(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line of each docstring that has a phrase of BY_ANOTHER, and the phrase."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = " ".join(str(node.value.value).split())
            for phrase in BY_ANOTHER.finditer(text):
                yield node.lineno, phrase[0]


def code_lines(text: str) -> int:
    """Return the number of lines that hold more than comments."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({token.start[0] for token in tokens if token.type not in LAYOUT})


def complaints(root: Path = ROOT) -> Iterator[str]:
    """Yield what breaks a rule, one line each."""
    for room, maximum in LARGE_FUNCTIONS.items():
        lines = 0
        packed_at = []
        too_large = []
        for file in sorted((root / room).rglob("*.py")):
            text = file.read_text("utf-8")
            tree = ast.parse(text)
            path = file.relative_to(root)
            lines_of_file = text.count("\n")
            if lines_of_file > LONG:
                yield f"{path}: {lines_of_file} lines, more than {LONG}"
            for line, phrase in explained_by_another(tree):
                yield f"{path}:{line}: a docstring explains its own arguments, not by another: {phrase!r}"
            lines += code_lines(text)
            packed_at += [f"{path}:{line}" for line in packed(tree)]
            too_large += [f"{path}:{node.lineno} {node.name} ({nodes})" for nodes, node in large(tree)]
        if 1000 * len(packed_at) > PACKED * lines:
            yield f"{room}: {len(packed_at)} assignments pack several values: {', '.join(packed_at)}"
        if len(too_large) > maximum:
            functions = ", ".join(too_large)
            yield f"{room}: {len(too_large)} functions of over {LARGE} nodes (at most {maximum}): {functions}"


if __name__ == "__main__":
    found = list(complaints())
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
