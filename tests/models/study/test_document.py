"""docs/head-studies.md holds what the run found, and keeps what a person wrote around it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.errors import ModelError
from models.study.document import BEGIN, END, write

REPORT = {
    "kind": "all",
    "model": "tiny",
    "number_format": "bfloat16",
    "device": "cpu (2 cores)",
    "data": {"source": "search.jsonl", "pairs": 1627, "queries": 81},
    "holdout": {"source": "proof.jsonl", "pairs": 1926, "queries": 91},
    "baseline": {"accuracy": 0.4921, "qwk": 0.5449, "ndcg10": 0.7659},
    "random_order_ndcg10": 0.57,
    "conclusion": "Two of three replicate.",
    "findings": [
        {
            "claim": "lower layers",
            "published": "-86 %",
            "ours": "-41 %",
            "replicates": True,
            "verdict": "built in",
            "reason": "all of it",
        },
        {
            "claim": "seeds",
            "published": "alike",
            "ours": "?",
            "replicates": None,
            "verdict": "open",
            "reason": "no peer",
        },
    ],
    "conclusions": {"single": "No head stands out.", "search": "50 heads."},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    plots = tmp_path / "run" / "plots"
    plots.mkdir(parents=True)
    for name in ("role-map", "single-heads"):
        (plots / f"{name}.png").write_bytes(name.encode())
    (tmp_path / "run" / "report.json").write_text(json.dumps(REPORT), encoding="utf-8")
    return tmp_path / "run"


def test_only_the_text_between_the_marks_changes(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "head-studies.md"
    page.write_text(f"# Ours\n\nA person's words.\n{BEGIN}\nold\n{END}\nMore of them.\n", encoding="utf-8")
    old = tmp_path / "head-studies" / "gone.png"
    old.parent.mkdir()
    old.touch()

    write(run, page)

    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# Ours\n\nA person's words.\n{BEGIN}\n")
    assert text.endswith(f"\n{END}\nMore of them.\n")
    assert "\nold\n" not in text
    assert "--holdout proof.jsonl" in text
    assert "1,627 pairs of 81 queries, 1,926 of 91 other queries held out" in text
    assert "accuracy 0.492, QWK 0.545, NDCG@10 0.766 (a random order: 0.570)" in text
    assert "All figures are of bfloat16 on cpu (2 cores)." in text
    assert "| lower layers | -86 % | -41 % | built in | all of it |" in text
    assert "| seeds | alike | ? | open | no peer |" in text
    assert "**search.** 50 heads." in text
    assert text.index("head-studies/single-heads.png") < text.index("head-studies/role-map.png")
    assert sorted(file.name for file in old.parent.iterdir()) == ["role-map.png", "single-heads.png"]

    write(run, page)
    assert page.read_text(encoding="utf-8") == text


def test_a_run_or_page_that_cannot_be_is_refused_and_left_alone(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(ModelError, match="needs a line"):
        write(run, page)
    page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    with pytest.raises(ModelError, match=r"no report\.json"):
        write(tmp_path, page)
    (run / "report.json").write_text(json.dumps(REPORT | {"kind": "single"}), encoding="utf-8")
    with pytest.raises(ModelError, match="'single'"):
        write(run, page)
    assert page.read_text(encoding="utf-8") == f"{BEGIN}\n{END}\n"
