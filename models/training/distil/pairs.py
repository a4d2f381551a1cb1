"""The unjudged pairs of a distillation: a file of any size, cut into portions of whole queries on disk."""

import math
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import orjson

from headroom.models.errors import ModelError
from headroom.models.quality.labelled import Columns, Rows, digest, iter_rows, query_key

PORTION_PAIRS = 4096
"""About this many pairs are in a portion, the part of the file that is in memory."""

HELD_OUT_PAIRS = 1000
HELD_OUT_SHARE = 0.1
"""Queries with about this many pairs, and at most this share, are not trained on: they show what was
learnt."""

BUFFER_BYTES = 8 << 20
"""Rows are written to the portions' files when this much has been read."""

HELD_OUT = "held-out"


class Pair(NamedTuple):
    """A query and a title. score: of the column that teaches; nan if a model does."""

    query: str
    title: str
    score: float = math.nan


@dataclass(frozen=True, slots=True)
class Survey:
    """The content of the pairs' source in numbers.

    pairs: of queries that may be trained on; left_out: of others. lowest, highest: of the scores; nan without
    a column of them.
    """

    pairs: int
    left_out: int
    lowest: float = math.nan
    highest: float = math.nan

    @property
    def portions(self) -> int:
        """Return how many portions the pairs are cut into."""
        return math.ceil(self.pairs / PORTION_PAIRS)


def read(source: Path | Rows, columns: Columns, scores: str | None) -> Iterator[Pair]:
    """Yield the pairs of a source one at a time. scores: the column of their scores, or None.

    Raises ModelError, which names the source and the line, for a row that is wrong or a score that is not a
    finite number.
    """
    for where, values in iter_rows(source, columns, () if scores is None else (scores,)):
        score = math.nan
        if scores is not None:
            score = _number(values[scores])
            if not math.isfinite(score):
                raise ModelError(f"{where}: {scores} {values[scores]!r} is not a finite number")
        yield Pair(values[columns.query], values[columns.title], score)


def survey(source: Path | Rows, columns: Columns, scores: str | None, avoided: Collection[str]) -> Survey:
    """Read the pairs from end to end and return what it holds.

    avoided: keys of queries (`query_key`) that are not trained on, because the student is tested with them.
    Raises ModelError for a wrong row, if no pair is left, or if all scores are equal.
    """
    pairs = 0
    left_out = 0
    lowest = math.inf
    highest = -math.inf
    for pair in read(source, columns, scores):
        if query_key(pair.query) in avoided:
            left_out += 1
            continue
        pairs += 1
        lowest = min(lowest, pair.score)
        highest = max(highest, pair.score)
    if not pairs:
        raise ModelError(f"{source}: every query is also one of the test's; give pairs of other queries")
    if scores is None:
        return Survey(pairs, left_out)
    if lowest == highest:
        raise ModelError(f"{source}: every {scores} is {lowest:g}, which teaches no order; give other scores")
    return Survey(pairs, left_out, lowest, highest)


def cut_into_portions(
    source: Path | Rows,
    columns: Columns,
    scores: str | None,
    avoided: Collection[str],
    found: Survey,
    target: Path,
) -> None:
    """Write the pairs into the directory `target`: each portion, and the queries held out.

    A query's portion is a hash of it, so all its pairs are in one, wherever they are in the source, and a
    portion is as mixed as the source. The directory is there whole or not at all.
    """
    draft = target.with_name(f"{target.name}.unfinished")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    lines = defaultdict[str, list[bytes]](list)
    held_out = min(HELD_OUT_SHARE, HELD_OUT_PAIRS / found.pairs)
    size = 0
    for pair in read(source, columns, scores):
        key = query_key(pair.query)
        if key in avoided:
            continue
        line = orjson.dumps(list(pair))  # NaN becomes null
        lines[_part(key, found.portions, held_out)].append(line)
        size += len(line)
        if size > BUFFER_BYTES:
            _append(draft, lines)
            size = 0
    _append(draft, lines)
    draft.rename(target)


def portions_of(directory: Path) -> list[Path]:
    """Return the files of the portions, in order. Raises ModelError if there are none."""
    files = sorted(file for file in directory.glob("*.jsonl") if file.stem != HELD_OUT)
    if not files:
        raise ModelError("the pairs are of too few queries to keep some for measuring; give more queries")
    return files


def read_portion(file: Path) -> list[Pair]:
    """Return the pairs of a portion; none if the file is not there."""
    if not file.exists():
        return []
    with file.open("rb") as lines:
        rows = map(orjson.loads, lines)
        return [Pair(query, title, math.nan if score is None else score) for query, title, score in rows]


def _part(key: str, portions: int, held_out: float) -> str:
    """Return the name of the part that a query belongs to. held_out: the share of queries held out."""
    drawn = digest(key)
    if int.from_bytes(drawn[8:16]) < held_out * 2**64:
        return HELD_OUT
    return f"{int.from_bytes(drawn[:8]) % portions:06d}"


def _append(directory: Path, lines: defaultdict[str, list[bytes]]) -> None:
    for name, of_part in lines.items():
        with (directory / f"{name}.jsonl").open("ab") as stream:
            stream.writelines(line + b"\n" for line in of_part)
    lines.clear()


def _number(value: object) -> float:
    """Return a cell's number; nan if it holds none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan
