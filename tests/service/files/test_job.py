"""Jobs that are killed, run out of disk, or are larger than memory."""

import gzip
import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from headroom.models.errors import ModelError
from headroom.service.files.storage import Storage
from tests.checkpoints import WORDS
from tests.service.files.killed import START, arguments, peak_bytes, score_all, start

ROWS = 1000


def pairs_file(path: Path, rows: int) -> Path:
    rng = np.random.default_rng(0)
    with path.open("w") as stream:
        for row in range(rows):
            query, title = (" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in range(2))
            bad = row % 97 == 13
            stream.write(
                "not json\n" if bad else json.dumps({"id": row, "query": query, "title": title}) + "\n"
            )
    return path


@pytest.mark.more
def test_a_job_that_is_killed_at_random_moments_gives_the_rows_of_an_undisturbed_one(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    kills = 5
    source = pairs_file(tmp_path / "pairs.jsonl", ROWS)
    options = {"model": tiny_checkpoint, "mask": "0-1.*"}
    undisturbed, output = tmp_path / "undisturbed.jsonl.gz", tmp_path / "killed.jsonl.gz"
    start(arguments(source, undisturbed, **options), window_rows=50).to_the_end()

    rng = np.random.default_rng(1)
    for _ in range(kills):
        child = start(arguments(source, output, **options), window_rows=50)
        assert child.event() == START
        for _ in range(rng.integers(0, 20 // kills)):
            child.event()
        child.kill()
        assert child.was_killed
        assert not output.exists()
    last = start(arguments(source, output, **options), window_rows=50).to_the_end()

    assert len(last) < 2 + ROWS // 50, "it did not go on from what was done"
    assert output.read_bytes() == undisturbed.read_bytes()
    rejects = [
        [json.loads(line) for line in Path(f"{file}.rejects.jsonl").read_text().splitlines()]
        for file in (output, undisturbed)
    ]
    assert rejects[0] == rejects[1]
    assert [reject["line"] for reject in rejects[0]] == list(range(14, ROWS + 1, 97))
    ids = [json.loads(line)["id"] for line in gzip.decompress(output.read_bytes()).splitlines()]
    assert ids == [row for row in range(ROWS) if row % 97 != 13]
    assert sorted(path.name for path in tmp_path.glob("killed*")) == [
        output.name,
        output.name + ".rejects.jsonl",
    ]


def test_an_input_that_changes_meanwhile_gives_no_output(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Else the output would hold rows of two contents, and nobody would know."""
    source, output = pairs_file(tmp_path / "pairs.jsonl", 300), tmp_path / "scored.jsonl"
    child = start(arguments(source, output, tiny_checkpoint), window_rows=50)
    assert child.event() == START
    child.event()
    pairs_file(source, 310)
    assert f"{source} has changed while it was scored" in str(child.to_the_end()[-1])
    assert not output.exists()

    start(arguments(source, output, tiny_checkpoint), window_rows=50).to_the_end()
    assert len(output.read_text().splitlines()) == 310 - 4


def test_an_input_that_is_away_for_a_while_costs_no_scored_row(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was unmounted, or a store that cannot be reached, cost the parts of all hours before."""
    source, output = pairs_file(tmp_path / "pairs.jsonl", 300), tmp_path / "scored.jsonl"
    job = arguments(source, output, tiny_checkpoint)
    reported = []

    fail = Mock(side_effect=OSError("no route to the store"))

    def go_away(_share: float, rows: int, _before: int) -> None:
        if rows >= 300:
            patch.setattr(Storage, "stat", fail)
            patch.setattr(Storage, "files", fail)

    with (
        monkeypatch.context() as patch,
        pytest.raises(ModelError, match=r"pairs.jsonl is gone or cannot be reached"),
    ):
        score_all(job, go_away, window_rows=50)
    assert not output.exists()
    assert len(list(tmp_path.glob("scored.jsonl.parts/*.part"))) == 6
    summary = score_all(job, lambda _share, rows, _before: reported.append(rows), window_rows=50)
    assert reported == []  # no window was scored again
    assert summary.rows + summary.rejects == 300


def test_a_full_disk_is_one_line_and_the_same_command_goes_on(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source = pairs_file(tmp_path / "pairs.jsonl", 600)
    job = arguments(source, tmp_path / "scored.jsonl", tiny_checkpoint)
    # A part is smaller than the limit, the whole output is larger.
    full = start(job, window_rows=50, file_bytes=60_000).to_the_end()
    assert isinstance(full[-1], str)
    assert "scored.jsonl cannot be written: File too large; what is scored is kept" in full[-1]
    assert not (tmp_path / "scored.jsonl").exists()

    start(job, window_rows=50).to_the_end()
    assert len((tmp_path / "scored.jsonl").read_text().splitlines()) == 600 - 7


@pytest.mark.more
def test_a_file_larger_than_the_memory_it_takes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    title = "steel wood lamp " * 6400  # 100 KB
    sizes = {}
    for name, rows in (("small", 20), ("large", 2600)):
        with gzip.open(tmp_path / f"{name}.csv.gz", "wt", compresslevel=1) as stream:
            stream.write("query,title\n")
            stream.writelines(f"angle {row},{title}\n" for row in range(rows))
        job = arguments(tmp_path / f"{name}.csv.gz", tmp_path / f"{name}.out.csv.zst", tiny_checkpoint)
        sizes[name] = peak_bytes(job)
    assert 2600 * len(title) > 250e6
    assert sizes["large"] - sizes["small"] < 200e6
