"""Draws mutants of service/ and models/ and says which of them no test notices.

python -m tests.mutants [--count 60] [--seed 1] [--under models/quality] [--out runs/mutants.json]

By hand, before and after tests are taken away: a mutant that died before must not live. One mutant is one
small change of one line: a comparison that takes the other side, `and` for `or`, + for −, a condition
turned round, a number one larger, True for False. Its tests are those that mirror its file:
tests/models/test_x.py for models/x.py, else the folder that mirrors its folder; of these the ones of
`make test`, or all if there are none. They run in a copy of this checkout until the first failure, which
must pass without the mutant. Prints each mutant and the words of pytest behind its verdict: "died",
"lives", "no tests", or "error": the tests took too long, could not start, or fail without the mutant.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("models", "service")
SECONDS = 600
"""The longest that a mutant's tests may take."""
COPIED = (
    "src",
    "models",
    "service",
    "loadtest",
    "tests",
    "default_model",
    "benchmarks",
    "deploy",
    "data",
    "docs",
)
OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
}
"""What becomes of an operator."""


@dataclass(frozen=True)
class Mutant:
    """A change of one expression. file: below ROOT. start, end: its columns, in bytes. before, after: it."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str


def main() -> None:
    """Draw, try and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--under", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    drawn = draw(options.count, options.seed, options.under)
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="headroom-mutants-") as directory:
        checkout = Path(directory)
        copy_checkout(checkout)
        for mutant in drawn:
            verdict, words = judge(mutant, checkout)
            verdicts.append(asdict(mutant) | {"verdict": verdict, "pytest": words})
            print(f"{verdict:8} {mutant.file}:{mutant.line}: {mutant.before} → {mutant.after}")
            print(f"         {words}", flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(verdicts, indent=1) + "\n", "utf-8")
    counts = Counter(verdict["verdict"] for verdict in verdicts)
    print(f"seed {options.seed}: {', '.join(f'{count} {name}' for name, count in counts.items())}")


def draw(count: int, seed: int, under: str = "") -> list[Mutant]:
    """Return mutants of files below a folder, at most one of each file; the same ones for the same source."""
    order = random.Random(seed)
    files = [file for part in PARTS for file in sorted((ROOT / part).rglob("*.py"))]
    files = [file for file in files if str(file.relative_to(ROOT)).startswith(under)]
    order.shuffle(files)
    drawn = list[Mutant]()
    for file in files:
        mutants = list(mutants_of(file))
        if mutants and len(drawn) < count:
            drawn.append(order.choice(mutants))
    return drawn


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Yield each mutant of a file whose expression stands on one line."""
    source = file.read_text("utf-8")
    lines = source.encode().splitlines()
    name = str(file.relative_to(ROOT))
    for node in expressions(ast.parse(source)):
        if not isinstance(node, ast.expr) or node.lineno != node.end_lineno:
            continue
        changed = changed_copy(node)
        if changed is not None:
            start = node.col_offset
            end = node.end_col_offset
            assert end is not None
            before = lines[node.lineno - 1][start:end].decode()
            yield Mutant(name, node.lineno, start, end, before, f"({ast.unparse(changed)})")


def expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those below it, but none of an f-string, whose parts have no place in Python 3.11."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.JoinedStr):
            yield from expressions(child)


def changed_copy(node: ast.AST) -> ast.expr | None:
    """Return a node with one thing changed; None if nothing of it is changed."""
    copied = copy.deepcopy(node)
    match copied:
        case ast.Compare(ops=[operator]) if type(operator) in OPPOSITE:
            copied.ops = [OPPOSITE[type(operator)]()]  # type: ignore[list-item]
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in OPPOSITE:
            copied.op = OPPOSITE[type(operator)]()  # type: ignore[assignment]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            copied.value = not value
        case ast.Constant(value=int(value)):
            copied.value = value + 1
        case ast.IfExp():
            copied.test = ast.UnaryOp(ast.Not(), copied.test)
        case _:
            return None
    return copied


def copy_checkout(target: Path) -> None:
    """Copy what the tests need; the source is what `headroom` is imported from."""
    for name in COPIED:
        shutil.copytree(
            ROOT / name, target / name, symlinks=True, ignore=shutil.ignore_patterns("node_modules")
        )
    for file in ("pyproject.toml", "CHANGELOG.md", "README.md", "constraints.txt", "Makefile"):
        shutil.copy(ROOT / file, target / file)


def judge(mutant: Mutant, checkout: Path) -> tuple[str, str]:
    """Return the verdict on a mutant and pytest's words; the checkout is then as before."""
    tests = tests_of(mutant.file)
    if tests is None:
        return "no tests", ""
    file = checkout / mutant.file
    source = file.read_bytes()
    lines = source.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    lines[mutant.line - 1] = line[: mutant.start] + mutant.after.encode() + line[mutant.end :]
    file.write_bytes(b"".join(lines))
    try:
        code, words = run(checkout, tests, "-m", "not more and not alone")
        if code == pytest.ExitCode.NO_TESTS_COLLECTED:
            code, words = run(checkout, tests)
    finally:
        file.write_bytes(source)
    match code:
        case pytest.ExitCode.OK:
            return "lives", words
        case pytest.ExitCode.NO_TESTS_COLLECTED:
            return "no tests", words
        case pytest.ExitCode.TESTS_FAILED:
            code, without = run(checkout, tests, "--last-failed", "--last-failed-no-failures", "none")
            return ("died", words) if code == pytest.ExitCode.OK else ("error", f"without it: {without}")
        case _:
            return "error", words


def run(checkout: Path, *arguments: str) -> tuple[int | None, str]:
    """Run pytest in the checkout. Return its exit code (None: too long) and what failed, or its last line."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", *arguments]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    try:
        done = subprocess.run(
            command,
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"not done in {SECONDS} s"
    lines = (done.stdout + done.stderr).splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return done.returncode, f"exit {done.returncode}: {' '.join(failed or lines[-1:])}"


def tests_of(file: str) -> str | None:
    """Return the test file or folder, below ROOT, that mirrors a source file."""
    path = Path("tests") / file
    candidates = [path.with_name(f"test_{path.name}"), path.with_suffix("")]
    candidates += [folder for folder in path.parents if len(folder.parts) > 2]
    return next((str(found) for found in candidates if (ROOT / found).exists()), None)


if __name__ == "__main__":
    main()
