"""Measures the query generator: against people's phrases, and by what its queries find.

    python -m default_model.question_figures --data ../shared/data

Prints ROUGE-L and exact matches on 500 Korean questions of SAE4K that nothing was trained on, beside the
words that `condense` and the rarest words (IDF) choose, with paired 95 % intervals; and NDCG@10 of the
sample's long queries, of the classifier and of BM25, with the generated query in place of the whole one.
Both choosers are told how many words the person's phrase has; the generator is not.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import log
from pathlib import Path

import numpy as np

from default_model.groups import json_lines
from default_model.questions import Asked, read_sae4k
from headroom import Classifier
from headroom.models.arrays import Floats
from headroom.models.condense.local import condense
from headroom.models.condense.search import Task
from headroom.models.condense.words import read_words
from headroom.models.quality.bootstrap import Interval, estimate, resample, standard_errors
from headroom.models.quality.labelled import SAMPLE, LabelledPair, numbers_of_lists, read_labelled
from headroom.models.quality.lexical import bm25, rouge_l
from headroom.models.quality.rankings import Rankings

RESAMPLES = 2000
BATCH = 50
LONG_QUERY_WORDS = 5

Writer = Callable[[Sequence[Asked]], list[str]]
"""Returns the short query of each question."""


def is_exact(written: str, wanted: str) -> float:
    """Return 1 if two queries are equal but for spaces, else 0."""
    return float(written.split() == wanted.split() or "".join(written.split()) == "".join(wanted.split()))


def interval(values: Floats) -> Interval:
    """Return the mean of one value per question with its 95 % interval."""
    counts = resample(len(values), RESAMPLES, seed=0)
    means = counts @ values / len(values)
    return estimate(means, standard_errors(values - values.mean(), counts)).interval()


def generated(clf: Classifier, beams: int, rows: Sequence[Asked]) -> list[str]:
    """Return the generator's queries."""
    generator = clf.checked_generator()
    asks = [generator.ask(row.question, beams) for row in rows]
    portions = (asks[start : start + BATCH] for start in range(0, len(asks), BATCH))
    return [generator.text(queries[0]) for portion in portions for queries in clf.write_queries(portion)]


def condensed(clf: Classifier, titles: dict[str, list[str]], rows: Sequence[Asked]) -> list[str]:
    """Return the words that `condense` keeps, as many as the person's phrase has.

    titles: of each question.
    """
    results = []
    for row in rows:
        task = Task(row.question, read_words(row.question), max_words=len(row.query.split()))
        results.append(condense(clf, task, titles[row.question]).query)
    return results


def rarest(questions: Sequence[str], rows: Sequence[Asked]) -> list[str]:
    """Return the rarest words, as many as the person's phrase has. questions: of which frequencies are."""
    counts = Counter(word.form for text in questions for word in set(read_words(text)))
    results = []
    for row in rows:
        words = read_words(row.question)
        by_rarity = sorted(words, key=lambda word: -log((len(questions) + 1) / (counts[word.form] + 1)))
        kept = by_rarity[: len(row.query.split())]
        results.append(" ".join(word.form for word in words if word in kept))
    return results


def against_people(clf: Classifier, data: Path, count: int) -> list[str]:
    """Return lines of figures on questions whose phrase people wrote."""
    parts = read_sae4k(data)
    rows = parts["test"][:count]
    asked = {row.question for row in rows}
    titles: dict[str, list[str]] = {}
    for pair in json_lines(data / "multilingual" / "sae4k" / "pairs.jsonl.gz"):
        if pair["query"] in asked:
            titles.setdefault(pair["query"], []).append(pair["title"])
    writers: dict[str, Writer] = {
        "generate, 4 beams": partial(generated, clf, 4),
        "generate, greedy": partial(generated, clf, 1),
        "condense": partial(condensed, clf, titles),
        "rarest words (IDF)": partial(rarest, [row.question for row in parts["training"]]),
    }
    queries = {name: write(rows) for name, write in writers.items()}
    lines = [f"{len(rows)} Korean questions of SAE4K, held out"]
    first = next(iter(queries))
    for title, measure in (("ROUGE-L", rouge_l), ("exact", is_exact)):
        values = {
            name: np.array([measure(one, row.query) for one, row in zip(written, rows, strict=True)])
            for name, written in queries.items()
        }
        for name, own in values.items():
            change = (
                "" if name == first else f"  first − this {interval(values[first] - own).text(sign=True)}"
            )
            lines.append(f"  {title:8} {name:20} {interval(own).text()}{change}")
    copied = [
        float(set(one.split()) <= set(row.question.split()))
        for one, row in zip(queries[first], rows, strict=True)
    ]
    lines.append(f"  queries of the question's own words alone: {np.mean(copied):.2f}")
    return lines


def retrieval(clf: Classifier) -> list[str]:
    """Return lines of figures on the sample's long queries: NDCG@10 of whole and generated queries."""
    labelled = read_labelled(SAMPLE / "test.jsonl.gz", grades=len(clf.grades))
    long = [pair for pair in labelled if len(pair.query.split()) >= LONG_QUERY_WORDS]
    questions = list(dict.fromkeys(pair.query for pair in long))
    queries = generated(clf, 4, [Asked(question, "", "sample") for question in questions])
    short = dict(zip(questions, queries, strict=True))
    titles = list(dict.fromkeys(pair.title for pair in labelled))
    match = bm25(titles)
    whole = [(pair.query, pair.title) for pair in long]
    written = [(short[pair.query], pair.title) for pair in long]
    lines = [f"{len(questions)} queries of {LONG_QUERY_WORDS} words or more of the sample, NDCG@10"]
    scorers: dict[str, Callable[[Sequence[tuple[str, str]]], Floats]] = {
        "classifier": lambda pairs: clf.score(pairs).raw_score.astype(np.float64),
        "BM25": lambda pairs: np.array([match(query, title) for query, title in pairs]),
    }
    for name, score in scorers.items():
        before = ndcg(long, score(whole))
        after = ndcg(long, score(written))
        both = f"whole {interval(before).text()}  generated {interval(after).text()}"
        lines.append(f"  {name:11} {both}  change {interval(after - before).text(sign=True)}")
    lines += [f"  {question} → {query}" for question, query in list(short.items())[:12]]
    return lines


def ndcg(pairs: Sequence[LabelledPair], scores: Floats) -> Floats:
    """Return NDCG@10 of each list that has one."""
    numbers = np.array(numbers_of_lists(pairs))
    values = Rankings(numbers, np.array([pair.grade for pair in pairs]), scores).metric("ndcg10")
    return values[~np.isnan(values)]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="checkpoint directory or hub id; default: the shipped model")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--count", type=int, default=500, help="held-out questions; default: %(default)s")
    options = parser.parse_args()
    clf = Classifier.load(options.model, "cpu")
    print(*against_people(clf, options.data, options.count), sep="\n", flush=True)
    print(*retrieval(clf), sep="\n")


if __name__ == "__main__":
    main()
