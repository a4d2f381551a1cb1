"""`--mask` takes a spec, a JSON form and a file, in every command alike, as typed at a prompt."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import orjson
import pytest

from tests.prompt import Run, write_labelled

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
    run(*command, "--mask", mask, "--mask", "none")
    assert "given twice" in run(*command, "--mask", mask, "--mask", mask, status=2).err


def test_all_forms_are_condensed_evaluated_and_pruned_with(
    run: Run, options: list[str], mask: str, tmp_path: Path
) -> None:
    titles = tmp_path / "titles.txt"
    titles.write_text("\n".join(TITLES))
    command = ["condense", QUERY, "--titles", str(titles), "--words", "1", *options]
    expected = run(*command, "--mask", SPEC)
    assert run(*command, "--mask", mask) == expected

    rows = [(f"query {number // 4}", f"{TITLES[number % 2]} {number}", number % 5) for number in range(16)]
    pairs = write_labelled(tmp_path / "pairs.csv", rows)
    command = ["evaluate", "--data", str(pairs), "--resamples", "100", "--json", *options, "--mask"]
    sides = [orjson.loads(run(*command, value).out)["sides"][1] for value in (SPEC, mask)]
    assert sides[0]["head_mask"] == sides[1]["head_mask"] == SPEC
    assert sides[0]["metrics"] == sides[1]["metrics"]

    output = run("prune", *options[:2], "--mask", mask, "--out", str(tmp_path / "pruned"), "--json")
    assert json.loads(output.out)["head_mask"]["spec"] == SPEC


def test_a_file_may_switch_units_off_as_a_stored_mask_may(
    run: Run, options: list[str], tmp_path: Path
) -> None:
    """A search by time writes such masks."""
    (tmp_path / "mask.json").write_text(json.dumps({"mask": {"off": [[2, 1]], "units": "0.0-40,2.*"}}))
    masked, plain = (
        run("score", QUERY, *TITLES, *options, *more)
        for more in (["--mask", str(tmp_path / "mask.json")], ["--mask", "2.1"])
    )
    assert masked != plain
    rows, output = tmp_path / "rows.csv", tmp_path / "scored.jsonl"
    rows.write_text("query,title\n" + "".join(f"{QUERY},{title}\n" for title in TITLES))
    command = ["score", "--input", str(rows), "--output", str(output), *options]
    run(*command, "--mask", str(tmp_path / "mask.json"))
    scores = [orjson.loads(line)["score"] for line in output.read_bytes().splitlines()]
    assert [f"{score:.4f}" for score in scores] == [line.split("\t")[0] for line in masked.out.splitlines()]


def test_a_file_made_for_a_model_of_another_shape_is_refused(
    run: Run, options: list[str], tmp_path: Path
) -> None:
    """Of a model with two layers: its layer 1 is not the layer 1 of one with three."""
    file, rows = tmp_path / "mask.json", write_labelled(tmp_path / "pairs.csv", [(QUERY, TITLES[0], 1)])
    weights = np.ones((2, 4), "<f4")
    weights[1, 2] = 0
    made = {"mask": {"off": [[1, 2]]}, "spec": "1.2", "model": "small"}
    file.write_text(json.dumps(made | {"id": hashlib.sha256(weights.tobytes()).hexdigest()[:12]}))
    for command in (
        ["score", QUERY, *TITLES, *options],
        ["score", "--input", str(rows), "--output", str(tmp_path / "out.csv"), *options],
        ["evaluate", "--data", str(rows), *options],
        ["prune", *options[:2], "--out", str(tmp_path / "o")],
    ):
        assert "the mask was made for another shape" in run(*command, "--mask", str(file), status=1).err

    whole = np.concatenate([weights[:1], weights[1:], np.ones((1, 4), "<f4")])
    file.write_text(json.dumps(made | {"id": hashlib.sha256(whole.tobytes()).hexdigest()[:12]}))
    masked, by_spec = (run("score", QUERY, *TITLES, *options, "--mask", m) for m in (str(file), "1.2"))
    assert masked.out == by_spec.out


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"spec": "0.*"}', "mask.json has no key `mask`"),
        ("{\n ", "mask.json is not valid JSON at line 2, column 2"),
        ("[]", "mask.json does not hold a JSON object"),
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
