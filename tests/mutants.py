"""Draws mutants of service/ and models/ and says which of them no test notices.

python -m tests.mutants [--count 60] [--seed 1] [--under models/quality] [--out runs/mutants.json]

By hand, before and after tests are taken away: a mutant that died before must not live. One mutant is one
small change of one line: a comparison that takes the other side, `and` for `or`, + for −, a condition
turned round, a number one larger, True for False. Its tests are those that mirror its file:
tests/models/test_x.py for models/x.py, else the folder that mirrors its folder. They run in a copy of
this checkout until the first failure. Prints each mutant with "died", "lives", or "no tests".
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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("models", "service")
SECONDS = 600
"""The longest that a mutant's tests may take; one that hangs has died."""
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
    """A change of one expression. file: below ROOT. before, after: the expression."""

    file: str
    line: int
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
            verdict = judge(mutant, checkout)
            verdicts.append(asdict(mutant) | {"verdict": verdict})
            print(f"{verdict:8} {mutant.file}:{mutant.line}: {mutant.before} → {mutant.after}", flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(verdicts, indent=1) + "\n", "utf-8")
    living = sum(verdict["verdict"] == "lives" for verdict in verdicts)
    print(f"{living} of {len(verdicts)} live (seed {options.seed})")


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
            before = lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
            yield Mutant(name, node.lineno, before, f"({ast.unparse(changed)})")


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


def judge(mutant: Mutant, checkout: Path) -> str:
    """Return "died", "lives" or "no tests" after the tests of one mutant; the checkout is then as before."""
    tests = tests_of(mutant.file)
    if tests is None:
        return "no tests"
    file = checkout / mutant.file
    source = file.read_text("utf-8")
    lines = source.splitlines(keepends=True)
    lines[mutant.line - 1] = lines[mutant.line - 1].replace(mutant.before, mutant.after, 1)
    file.write_text("".join(lines), "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        "not more and not alone",
    ]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    try:
        done = subprocess.run(
            [*command, tests],
            cwd=checkout,
            env=environment,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "died"
    finally:
        file.write_text(source, "utf-8")
    return "lives" if done.returncode == 0 else "died"


def tests_of(file: str) -> str | None:
    """Return the test file or folder, below ROOT, that mirrors a source file."""
    path = Path("tests") / file
    candidates = [path.with_name(f"test_{path.name}"), path.with_suffix("")]
    candidates += [folder for folder in path.parents if len(folder.parts) > 2]
    return next((str(found) for found in candidates if (ROOT / found).exists()), None)


if __name__ == "__main__":
    main()
