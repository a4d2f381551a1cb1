"""Measures how much NDCG@10 condensed queries keep, by method and by the share of words left out.

    python -m benchmarks.condense_quality --data ../shared/data

The queries are the test folds' long ones: DBpedia-Entity's list and natural-language questions, and the
longest tenth of ESCI's. No method sees a grade. What is computed is kept in --cache, so that a run that was
stopped goes on; the table goes into docs/condense.md and the plot beside it. The data are what
`python -m models.training.demo.fetch --out DIR` writes into DIR.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from models.classifier import Classifier
from models.condense import frequencies, search
from models.condense.attention import attention_to_query, importance_of_words
from models.condense.local import judge
from models.condense.loss import Floats, relevance
from models.condense.methods import Method, tried
from models.condense.search import Condensed, Task
from models.condense.titles import Titles, kept_heads
from models.condense.words import read_words
from models.quality.ndcg import ndcg10
from models.study.statistics import mean_intervals
from models.training.data import TEST_FOLDS, Judged, read_judged, source_family
from models.training.demo.sources import dbpedia

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- quality: begin -->", "<!-- quality: end -->"
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
EVERY_DELETION = "greedy, every deletion"
METHODS: Mapping[str, Method] = {
    "greedy": "greedy",
    EVERY_DELETION: "greedy",
    "leave_one_out": "leave_one_out",
    "attention": "attention",
    "idf": "idf",
}
TITLES = 50
ATTENTION_TITLES = 10
LIST_AND_QUESTIONS = ("QALD2", "INEX_XER", "SemSearch_LS", "TREC_Entity")
RESAMPLES = 4000


def read_queries(data: Path) -> dict[str, list[Judged]]:
    """Return the judged titles of each long query, at most TITLES of them, drawn by the titles' hashes.

    A title of a higher grade is drawn before one of a lower grade until half of the room is full.
    """
    kinds = _kinds(data)
    by_query: dict[str, list[Judged]] = {}
    for row in read_judged(data, TEST_FOLDS):
        by_query.setdefault(row.query, []).append(row)
    esci = sorted(
        (query for query, rows in by_query.items() if source_family(rows[0].source) == "esci"),
        key=lambda query: (-len(read_words(query)), query),
    )
    longest = set(esci[: len(esci) // 10])
    chosen = {
        query: _drawn(rows)
        for query, rows in by_query.items()
        if query in longest or kinds.get(query, "").startswith(LIST_AND_QUESTIONS)
    }
    return {
        query: rows
        for query, rows in sorted(chosen.items())
        if len(read_words(query)) > 2 and len({row.grade for row in rows}) > 1
    }


def _kinds(data: Path) -> dict[str, str]:
    """Return the id of each DBpedia query, which begins with its kind.

    Fetched data have the ids in the raw file of queries; without raw files, they are in the file of pairs.
    """
    raw = data / "raw" / "dbpedia_entity_v2"
    if raw.exists():
        return {query: kind for kind, query in dbpedia.queries(raw).items()}
    with gzip.open(data / "dbpedia_entity_v2" / "pairs.jsonl.gz", "rt", encoding="utf-8") as lines:
        return {row["query"]: row["qid"] for row in map(json.loads, lines)}


def _drawn(rows: Sequence[Judged]) -> list[Judged]:
    shuffled = sorted(rows, key=lambda row: hashlib.sha256(row.title.encode()).digest())
    best = sorted(shuffled, key=lambda row: -row.grade)[: TITLES // 2]
    others = [row for row in shuffled if row not in best]
    return best + others[: TITLES - len(best)]


def measure(classifier: Classifier, query: str, rows: Sequence[Judged]) -> dict[str, Any]:
    """Return the NDCG@10 and the loss at every length, from all words to one, by method."""
    titles = Titles(classifier.tokenizer, [row.title for row in rows])
    truth = np.array([row.grade for row in rows])
    known: dict[str, Floats] = {}

    def judged(queries: Sequence[str]) -> Floats:
        new = [text for text in queries if text not in known]
        if new:
            answers = titles.spread(judge(classifier, titles.encode(new)), len(new))
            known.update(zip(new, answers, strict=True))
        return np.stack([known[text] for text in queries])

    def ndcg(text: str) -> float:
        return ndcg10(truth, relevance(judged([text])[0]))

    found: dict[str, Any] = {"query": query, "source": source_family(rows[0].source), "ndcg10": ndcg(query)}
    words = read_words(query)
    for method in METHODS:
        importance = None
        if method == "idf":
            importance = frequencies.importance_of_words(words, [row.title for row in rows])
        elif method == "attention":
            heads = kept_heads(classifier, None)
            pairs = titles.encode([query])[:: max(1, len(rows) // ATTENTION_TITLES)][:ATTENTION_TITLES]
            received = [attention_to_query(classifier, pair, heads) for pair in pairs]
            importance = importance_of_words(classifier.tokenizer, query, words, received)
        task = Task(query, words, METHODS[method], max_words=1)
        path = _path(task, importance, judged, every_deletion=method == EVERY_DELETION)
        found[method] = {
            "queries": [length.query for length in path.path],
            "ndcg10": [ndcg(length.query) for length in path.path],
            "loss": [length.loss for length in path.path],
        }
    return found


def _path(
    task: Task,
    importance: Sequence[float] | None,
    judged: Callable[[Sequence[str]], Floats],
    *,
    every_deletion: bool,
) -> Condensed:
    with mock.patch.object(search, "tried", (lambda words: words) if every_deletion else tried):
        steps = search.search(task, importance)
        queries = next(steps)
        while True:
            try:
                queries = steps.send(judged(queries))
            except StopIteration as end:
                condensed: Condensed = end.value
                return condensed


def at_share(values: Sequence[float], share: float) -> float:
    """Return the value of a path at which this share of the words is left out, rounded; one word stays."""
    return values[min(round(share * len(values)), len(values) - 1)]


def as_markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables: NDCG@10 by method and share left out, and greedy against IDF."""
    whole = np.array([row["ndcg10"] for row in results])
    sources = sorted({row["source"] for row in results})
    counts = ", ".join(f"{sum(row['source'] == name for row in results)} of {name}" for name in sources)
    words = np.mean([len(row["greedy"]["queries"]) for row in results])
    lines = [
        f"{len(results)} queries ({counts}), {words:.1f} words on average, up to {TITLES} titles each; "
        f"NDCG@10 of the whole query: {whole.mean():.3f}. Intervals are 95 %.",
        "",
        "| words left out | " + " | ".join(METHODS) + " | greedy minus idf |",
        "|---" * (len(METHODS) + 2) + "|",
    ]
    for share in SHARES:
        columns = {
            method: np.array([at_share(row[method]["ndcg10"], share) for row in results])
            for method in METHODS
        }
        cells = [f"{values.mean():.3f}" for values in columns.values()]
        change = columns["greedy"] - columns["idf"]
        low, high = _interval(change)
        lines.append(
            f"| {share:.0%} | " + " | ".join(cells) + f" | {change.mean():+.3f} ({low:+.3f} to {high:+.3f}) |"
        )
    same = np.mean([row["greedy"]["queries"] == row["greedy, every deletion"]["queries"] for row in results])
    lines += ["", f"Greedy finds the same path as with every deletion judged for {same:.0%} of the queries."]
    return "\n".join(lines).replace("+-", "−").replace(" -", " −").replace("(-", "(−")


def _interval(values: Floats) -> tuple[float, float]:
    low, high = mean_intervals(values[:, None], RESAMPLES, 0)
    return float(low[0]), float(high[0])


def draw(results: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw the NDCG@10 that each method keeps, with its interval, and write it as PNG."""
    from models.study import plots

    drawing, axes = plots.figure(8, 5)
    whole = np.array([row["ndcg10"] for row in results])
    shown = [method for method in METHODS if "," not in method]
    for line, method in enumerate(shown):
        changes = [
            np.array([at_share(row[method]["ndcg10"], share) for row in results]) - whole for share in SHARES
        ]
        bands = [_interval(change) for change in changes]
        plots.curve(
            axes,
            [100 * share for share in SHARES],
            [float(change.mean()) for change in changes],
            [low for low, _ in bands],
            [high for _, high in bands],
            line=line,
            label=method,
        )
    axes.axhline(0, color=plots.GREY, lw=1)
    axes.set(xlabel="words left out, %", ylabel="change of NDCG@10, 95 % interval")
    axes.set_title("What condensed queries keep")
    axes.legend()
    drawing.savefig(file, dpi=110)


def write(table: str, page: Path) -> None:
    """Replace what stands between the marks of the page."""
    text = page.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.condense_quality", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--cache", type=Path, default=Path("runs/condense-quality.jsonl"))
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long; run again to go on")
    options = parser.parse_args()
    queries = read_queries(options.data)
    done: list[dict[str, Any]] = []
    if options.cache.exists():
        done = [json.loads(line) for line in options.cache.read_text(encoding="utf-8").splitlines()]
    left = [query for query in queries if query not in {row["query"] for row in done}]
    classifier = Classifier.load()
    options.cache.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with options.cache.open("a", encoding="utf-8") as cache:
        for number, query in enumerate(left):
            if time.monotonic() - began > options.seconds:
                print(f"{len(left) - number} queries are left; run the same command again")
                return
            done.append(measure(classifier, query, queries[query]))
            cache.write(json.dumps(done[-1], ensure_ascii=False) + "\n")
            cache.flush()
    table = as_markdown(done)
    print(table)
    if (DOCS / "condense.md").exists():
        write(table, DOCS / "condense.md")
        (DOCS / "condense").mkdir(exist_ok=True)
        draw(done, DOCS / "condense" / "ndcg.png")


if __name__ == "__main__":
    main()
