"""What `import headroom` offers: its types, the examples of its docstrings, and the notebook."""

import doctest
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headroom
from headroom.models.api import studies

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "notebooks" / "prune_and_prove.ipynb"
FEWER = {
    "head(8)": "head(4)",
    "ranked[:50], ranked[50:180], ranked[180:]": "ranked[:20], ranked[20:110], ranked[110:140]",
    "margin=0.05": "margin=0.5",
}
"""What the notebook says, and what takes less time: fewer pairs, and a margin for so few."""
DOCUMENTED = [
    *(headroom, headroom.Attention, headroom.Classifier, headroom.Scores),
    *(headroom.evaluate, headroom.prune, studies),
]

SCRIPT = """
from headroom import Attention, Classifier, Evaluated, HeadMask, PairScore, Pruned, Scores, StudyResult
from headroom import evaluate, prune, study

clf = Classifier.load()
scores: Scores = clf.score("usb", ["usb cable"], head_mask="6-11.*")
scores = clf.score([("usb", "usb cable")], head_mask=["6-11.*", None, {"off": [[2, 3]]}, clf.all_heads])
scores = clf.score([("usb", "usb cable")], HeadMask.none(12, 12))
one: PairScore = scores[0]
rest: Scores = scores[1:]
best: str | None = max(scores, key=lambda pair: pair.raw_score).title
shown: Attention = clf.attention("usb", "usb cable", heads="2.3")
measured: Evaluated = evaluate(clf, "judged.csv", masks=["none", "6-11.*"])
measured = evaluate({"a": clf}, [("usb", "usb cable", 4)])
found: StudyResult = study.search(clf, "a.csv", holdout="b.csv", margin=0.02, quick=True)
smaller: Pruned = prune(clf, found.mask or "6-11.*", "smaller")
"""

WRONG = """
clf.score("usb")
clf.score([1, 2])
study.single(clf, "a.csv", margins=0.1)
evaluate("model", "a.csv")
"""


@pytest.mark.more
@pytest.mark.slow
def test_a_users_script_passes_mypy_strict_and_wrong_calls_do_not(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + WRONG)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(script)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [int(line.split(":")[1]) for line in run.stdout.splitlines() if ": error:" in line]
    first = len(SCRIPT.splitlines()) + 2
    assert sorted(set(lines)) == list(range(first, first + 4)), run.stdout


def test_importing_headroom_imports_neither_torch_nor_pandas() -> None:
    code = "import sys, headroom; print([n for n in ('torch', 'pandas', 'matplotlib') if n in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page of the reference says that the examples know."""
    from headroom.models.quality.labelled import read_labelled

    judged = read_labelled(ROOT / "data" / "sample" / "test.jsonl.gz", grades=5)
    count = dict.fromkeys((pair.query for pair in judged), 0)
    pairs = []
    for pair in judged:
        count[pair.query] += 1
        if count[pair.query] <= 4 and len(pairs) < 120:
            pairs.append((pair.query, pair.title, pair.grade))
    return {
        **{name: getattr(headroom, name) for name in ("Classifier", "evaluate", "prune", "study")},
        "clf": headroom.Classifier.load(),
        "pairs": pairs,
        "directory": tmp_path_factory.mktemp("examples"),
    }


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("documented", DOCUMENTED, ids=lambda one: one.__name__)
def test_the_examples_of_the_reference_are_true(documented: Any, names: dict[str, Any]) -> None:
    if documented is studies:
        names = names | {"pairs": names["pairs"][:40]}  # 37 networks read them
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    found = doctest.DocTestFinder(exclude_empty=True).find(documented, globs=names)
    found = [test for test in found if test.examples]
    assert found
    shown: list[str] = []
    for test in found:
        runner.run(test, out=shown.append)
    assert "".join(shown) == ""


@pytest.mark.more
@pytest.mark.slow
def test_the_notebook_runs_and_its_plots_are_in_it(tmp_path: Path) -> None:
    """All its code, on fewer pairs. Outputs are not compared: times differ, and the last digits of scores."""
    text = NOTEBOOK.read_text("utf-8")
    for written, fewer in FEWER.items():
        assert written in text
        text = text.replace(written, fewer)
    (tmp_path / "fewer.ipynb").write_text(text, "utf-8")
    code = (
        "import sys, nbformat; from nbclient import NotebookClient\n"
        "book = nbformat.read(sys.argv[1], 4)\n"
        "NotebookClient(book, timeout=240, resources={'metadata': {'path': sys.argv[2]}}).execute()\n"
        "nbformat.write(book, sys.argv[3])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, "fewer.ipynb", str(NOTEBOOK.parent), "run.ipynb"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    for file in (NOTEBOOK, tmp_path / "run.ipynb"):
        cells = json.loads(file.read_text("utf-8"))["cells"]
        data = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
        assert sum("image/png" in one for one in data) == 4, file
        assert any("times as fast" in "".join(one.get("text/markdown", "")) for one in data), file
