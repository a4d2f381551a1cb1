"""`--mask` takes a spec, a JSON form and a file, in every command alike, as typed at a prompt."""

import json
import os
from pathlib import Path

import pytest

from tests.prompt import Run

QUERY, TITLES = "steel angle bracket", ["Simpson Strong-Tie 12-Gauge Angle", "wood deck screws"]
FORM = {"off": [[0, 0], [0, 1], [0, 2], [0, 3], [1, 2]]}
SPEC = "0.*,1.2"


@pytest.fixture(params=["form", "form in a file", "a study's file", "spec in a file"])
def mask(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """SPEC, written otherwise."""
    content = {
        "form in a file": FORM,
        "a study's file": {"mask": FORM, "spec": SPEC, "heads_on": 7},
        "spec in a file": {"mask": SPEC},
    }
    if request.param == "form":
        return json.dumps(FORM)
    file = tmp_path / "mask.json"
    file.write_text(json.dumps(content[request.param]))
    return str(file)


def test_all_forms_score_files(run: Run, options: list[str], mask: str, tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.csv", tmp_path / "scored.csv"
    rows.write_text(f"query,title\n{QUERY},{TITLES[0]}\n{QUERY},{TITLES[1]}\n")
    command = ["score", "--input", str(rows), "--output", str(output), "--overwrite", *options]
    run(*command, "--mask", SPEC)
    expected = output.read_bytes()
    run(*command, "--mask", mask)
    assert output.read_bytes() == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"spec": "0.*"}', "mask.json has no key `mask`"),
        (None, "mask.json does not exist"),
        ('{"mask": {"off": [[9, 0]]}}', "layer 9 does not exist; this model has layers 0 to 2"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(
    run: Run, options: list[str], tmp_path: Path, content: str | None, reason: str
) -> None:
    file = tmp_path / "mask.json"
    if content is not None:
        file.write_text(content)
    for command in (
        ["score", QUERY, *TITLES, *options],
        ["prune", *options[:2], "--out", str(tmp_path / "o")],
    ):
        assert reason in run(*command, "--mask", str(file), status=1).err


def test_a_fifo_is_not_waited_for_whatever_it_is_given_as(
    run: Run, options: list[str], tmp_path: Path
) -> None:
    def fifo(name: str) -> str:
        os.mkfifo(tmp_path / name)
        return str(tmp_path / name)

    commands = [
        ("score", QUERY, *TITLES, *options, "--mask", fifo("mask.json")),
        ("score", QUERY, *TITLES, "--config", fifo("serve.yaml")),
        ("score", "--input", fifo("in.csv"), "--output", str(tmp_path / "out.csv"), *options),
        ("condense", QUERY, "--titles", fifo("titles"), "--words", "1", *options),
        ("evaluate", "--data", fifo("pairs.csv"), *options),
        ("prune", "--mask", fifo("pruned.json"), "--out", str(tmp_path / "out"), *options[:2]),
        ("serve", "--config", str(tmp_path / "serve.yaml")),
    ]
    for command in commands:
        output = run(*command, status=1)
        assert output.err.count("\n") == 1
        assert "it is not a regular file" in output.err or "or is no file" in output.err
