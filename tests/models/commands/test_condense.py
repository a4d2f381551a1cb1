"""`headroom condense`, as typed at a prompt."""

from pathlib import Path

import orjson
import pytest

from headroom import Classifier, HeadMask
from headroom.models.commands.condense import read_candidates
from headroom.models.condense.local import condense
from headroom.models.condense.search import Task
from headroom.models.condense.words import read_words
from tests.generators import with_generator
from tests.prompt import Run

QUERY = "where is a steel angle bracket?"
TITLES = ["Simpson Strong-Tie 12-Gauge Angle", "wood deck screws", "lamp"]


def test_the_short_query_and_the_loss_at_every_length(
    run: Run, options: list[str], clf: Classifier, tmp_path: Path
) -> None:
    file = tmp_path / "titles.txt"
    file.write_text("\n".join([*TITLES, ""]), encoding="utf-8")
    task = Task(QUERY, read_words(QUERY), max_words=2)

    plain = run("condense", QUERY, "--titles", str(file), "--words", "2", *options)
    lines = plain.out.splitlines()
    expected = condense(clf, task, TITLES)
    assert lines[0] == expected.query
    assert lines[2].split() == ["words", "loss", "query"]
    assert [line.split()[0] for line in lines[3:]] == ["6", "5", "4", "3", "2", "1"]

    mask = HeadMask.parse("0-1.*", layers=3, heads=4)
    masked = run(
        *("condense", QUERY, "--titles", "-", "--words", "2", "--mask", "0-1.*", "--json", *options),
        stdin="\n".join(TITLES).encode(),
    )
    answer = orjson.loads(masked.out)
    under_mask = condense(clf, task, TITLES, mask)
    assert answer["condensed"] == under_mask.query
    assert [row["loss"] for row in answer["path"]] == pytest.approx(
        [length.loss for length in under_mask.path], abs=1e-4
    )
    assert [word["word"] for word in answer["words"]] == QUERY.split()


def test_a_query_is_written(run: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    writer = with_generator(tiny_checkpoint, tmp_path)
    options = ("--generate", "--model", str(tmp_path), "--dtype", "float32", "--device", "cpu")
    expected = writer.generate_query(QUERY, 2, "0.1;cross:1.*")
    plain = run("condense", QUERY, *options, "--beams", "2", "--mask", "0.1;cross:1.*").out.splitlines()
    assert plain[0] == expected[0].query
    assert [line.split(maxsplit=1) for line in plain[3:]] == [
        [f"{one.score:.3f}", one.query] for one in expected
    ]
    answer = orjson.loads(run("condense", QUERY, *options, "--json", "--mask", "cross:*.1").out)
    best = writer.generate_query(QUERY, 4, "cross:*.1")
    assert [one["query"] for one in answer["queries"]] == [one.query for one in best]
    assert (answer["condensed"], answer["head_mask"]) == (best[0].query, "cross:0.1,1.1")


def test_only_the_end_of_a_line_ends_a_title(tmp_path: Path) -> None:
    file = tmp_path / "titles.txt"
    file.write_bytes("wood\u2028deck\x85screws\r\nlamp\rsteel\x0clamp\n".encode())
    titles = ["wood\u2028deck\x85screws", "lamp", "steel\x0clamp"]
    assert read_candidates(str(file), QUERY) == titles


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["  ", "--titles", "gone.txt"], 2, "must not be blank"),
        (["a b", "--beams", "2"], 2, "is for --generate"),
        (["a b", "--generate", "--mask", "cross:0.1;2.1"], 1, "the encoder's heads come first"),
    ],
)
def test_wrong_arguments_are_said_in_one_line(
    run: Run, arguments: list[str], status: int, reason: str
) -> None:
    assert reason in run("condense", *arguments, status=status).err
