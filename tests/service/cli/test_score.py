"""`headroom score`, as typed at a prompt."""

import io
import json
import sys
from pathlib import Path

import orjson
import pytest

from headroom import Classifier
from headroom.models.terminal import write_what_the_terminal_can
from tests.prompt import Run, with_config

QUERY = "angle bracket"
TITLES = ["Simpson Strong-Tie 12-Gauge Angle", "wood deck screws"]


def test_one_line_per_title_in_the_order_given(run: Run, options: list[str], clf: Classifier) -> None:
    output = run("score", QUERY, *TITLES, *options)

    scores = clf.score([(QUERY, title) for title in TITLES])
    expected = [
        f"{scores.score[i]:.4f}\t{clf.grades[scores.grade[i]]}\t{title}" for i, title in enumerate(TITLES)
    ]
    assert output == ("\n".join(expected) + "\n", "")


def test_pairs_from_standard_input(run: Run, options: list[str]) -> None:
    lines = "".join(f"{QUERY}\t{title}\n" for title in TITLES)

    output = run("score", "-", *options, stdin=(lines + "\nkeyboard\twireless\tkeyboard\r\n").encode())

    rows = [line.split("\t", 3) for line in output.out.splitlines()]
    assert [row[2:] for row in rows] == [
        [QUERY, TITLES[0]],
        [QUERY, TITLES[1]],
        ["keyboard", "wireless\tkeyboard"],
    ]
    assert rows[0][0] == run("score", QUERY, TITLES[0], *options).out.split("\t")[0]


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["score", "a"], 2, "TITLES"),
        (["score", "-", "a"], 2, "standard input"),
        (["score", "a", "b", "--prefix", "x"], 2, "--prefix: it needs --input"),
        (
            ["score", "--input", "a.csv", "--cache", "redis://x", "--overwrite"],
            2,
            "--overwrite: it needs --output",
        ),
    ],
)
def test_wrong_use_is_one_line_and_a_status(
    run: Run, options: list[str], arguments: list[str], status: int, reason: str
) -> None:
    output = run(*arguments[:1], *options, *arguments[1:], status=status)
    assert reason in output.err
    assert "Traceback" not in output.err
    assert output.out == ""


def test_a_cascade_of_a_config_file(run: Run, options: list[str], tmp_path: Path) -> None:
    live = """{variants: [{name: full}, {name: small, head_mask: "0-1.*"},
        {name: other, head_mask: "@not-there"},
        {name: both, cascade: [{variant: small, keep: 1}, {variant: full}]}]}"""
    lines = [f"{query}\t{title}" for query in (QUERY, "usb cable") for title in TITLES]
    named = [*options, *with_config(tmp_path, live), "--json"]
    found = {
        variant: [
            orjson.loads(line)
            for line in run(
                "score", "-", *named, "--variant", variant, stdin="\n".join(lines).encode()
            ).out.splitlines()
        ]
        for variant in ("full", "small", "both")
    }
    for start in (0, 2):  # of each query, the title that `small` finds best has the score of `full`
        small, both = found["small"][start : start + 2], found["both"][start : start + 2]
        best = max((0, 1), key=lambda place: small[place]["score"])
        assert [row["stage"] for row in both] == ["full" if place == best else "small" for place in (0, 1)]
        assert both[best]["score"] == pytest.approx(found["full"][start + best]["score"], abs=1e-5)
        assert both[1 - best]["score"] < both[best]["score"]
        assert both[1 - best]["probabilities"] == pytest.approx(small[1 - best]["probabilities"], abs=1e-5)
    assert "stage" not in found["full"][0]


def test_a_title_may_begin_with_a_dash(run: Run, options: list[str]) -> None:
    assert run("score", *options, "drill", "--", "-5 mm drill").out.endswith("\t-5 mm drill\n")


def test_a_terminal_without_unicode_gets_what_it_can_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables with a minus sign ended in a UnicodeEncodeError. JSON keeps its meaning."""
    screen = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(screen, "ascii", newline="\n"))
    write_what_the_terminal_can()
    print("−0.031 (−0.050 to 0.012) … café")
    print(json.dumps({"title": "−5 😀"}, ensure_ascii=False))
    sys.stdout.flush()
    lines = screen.getvalue().decode("ascii").splitlines()
    assert lines[0] == r"-0.031 (-0.050 to 0.012) ... caf\u00e9"
    assert json.loads(lines[1]) == {"title": "−5 😀"}
