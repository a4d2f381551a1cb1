"""`headroom study`, as typed at a prompt."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.prompt import Run


def write(path: Path, queries: int, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    words = ["angle", "bracket", "wood", "screws", "lamp", "usb", "red", "towel"]
    rows = [
        {
            "query": f"lamp {seed} {i % queries}",
            "title": " ".join(rng.choice(words, 4)),
            "grade": int(rng.integers(0, 5)),
        }
        for i in range(5 * queries)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_study_leaves_a_report_and_says_where(run: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", 12)
    out = tmp_path / "out"
    arguments = (
        *("study", "single", "--model", str(tiny_checkpoint), "--data", str(data)),
        *("--out", str(out), "--quick"),
    )
    first = run(*arguments)
    assert first.out.splitlines()[-1] == str(out / "report.html")
    assert max(map(len, first.out.splitlines()[:-1])) <= 100
    assert {"report.json", "report.md", "report.html", "plots", "cache"} <= {p.name for p in out.iterdir()}
    again = run(*arguments, "--json")
    assert json.loads(again.out) == json.loads((out / "report.json").read_text())


@pytest.mark.more
def test_a_quick_study_of_183_queries_makes_its_claim(
    run: Run, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    arguments = (
        "study",
        "single",
        "--model",
        str(tiny_checkpoint),
        "--out",
        str(tmp_path / "out"),
        "--quick",
        "--margin",
        "0.4",
    )
    output = run(*arguments, "--data", str(write(tmp_path / "d.jsonl", 183)))
    assert "too few" not in output.out
    assert "to cost less than 0.4" in output.out
    assert "cannot show" not in output.err
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert 60 <= report["data"]["queries"] < 183
    assert report["limits"] == []


def test_a_study_says_beforehand_what_it_cannot_show(run: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    data, holdout = write(tmp_path / "d.jsonl", 12), write(tmp_path / "h.jsonl", 14, seed=1)
    out = tmp_path / "out"
    arguments = ("study", "search", "--model", str(tiny_checkpoint), "--data", str(data), "--out", str(out))
    alone = run(*arguments, "--quick").err
    assert "cannot show that a smaller network is good enough: that takes other queries (--holdout)" in alone
    few = run(*arguments, "--quick", "--holdout", str(holdout)).err
    ranked = sum(len({row["grade"] for row in rows}) > 1 for rows in by_query(holdout).values())
    assert (
        f"{ranked} of the 14 queries of {holdout} have titles of different grades, and that takes 183"
        in few
    )
    assert "5 random networks no p-value is below 0.17" in few
    report = json.loads((out / "report.json").read_text())
    assert len(report["limits"]) == 2
    assert all(sentence in (out / "report.html").read_text() for sentence in report["limits"])


def by_query(path: Path) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text().splitlines():
        rows.setdefault(json.loads(line)["query"], []).append(json.loads(line))
    return rows


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("query,title\na,b\n", "line 1: there is no column grade; found 'query', 'title'"),
        ("query,title,grade\n" + "a,b,1\n" * 20, "a study needs at least 10 queries"),
    ],
)
def test_bad_data_is_one_clear_line(
    run: Run, tiny_checkpoint: Path, tmp_path: Path, content: str, words: str
) -> None:
    data = tmp_path / "d.csv"
    data.write_text(content)
    output = run(
        *("study", "layers", "--model", str(tiny_checkpoint)),
        *("--data", str(data), "--out", str(tmp_path / "out")),
        status=1,
    )
    assert words in output.err
    assert len(output.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.more
@pytest.mark.slow
def test_a_search_by_time_removes_what_it_may(run: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    data, holdout = write(tmp_path / "d.jsonl", 12), write(tmp_path / "h.jsonl", 12, seed=1)
    output = run(
        *("study", "search", "--model", str(tiny_checkpoint), "--data", str(data), "--dtype", "float32"),
        *("--quick", "--what", "units,layers", "--speedup", "1.2", "--json"),
        *("--holdout", str(holdout), "--out", str(tmp_path / "out")),
    )

    report = json.loads(output.out)
    assert report["what"] == ["units", "layers"]
    assert all(point["heads_on"] == 4 * point["layers_on"] for point in report["path"])
    assert report["chosen"]["speedup_predicted"] >= 1.2
    assert (tmp_path / "out" / "mask.json").exists()


@pytest.mark.more
def test_a_stopped_study_leaves_whole_parts_and_says_how_to_go_on(tmp_path: Path) -> None:
    """Ctrl-C ends it with one line."""
    data = write(tmp_path / "d.jsonl", 12)
    out = tmp_path / "out"
    command = [sys.executable, "-c", "from headroom.service.cli import main; main()", "study", "layers"]
    command += ["--data", str(data), "--out", str(out), "--dtype", "float32"]
    pipe, environment = subprocess.PIPE, os.environ | {"OMP_NUM_THREADS": "2"}
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
    while not list((out / "cache").glob("*.npy")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    lines = err.strip().splitlines()
    assert lines[-1] == "headroom: stopped; the same command goes on from what is done"
    assert not (out / "report.json").exists()
    parts = list((out / "cache").glob("*.npy"))
    assert parts
    assert all(np.load(part).size for part in parts)
