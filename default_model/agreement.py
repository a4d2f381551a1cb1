"""Measures how far smaller networks rank titles as the shipped model does, on queries that nobody judged.

    python -m default_model.agreement --checkpoints models/default/networks/fast --data runs/data

Of each query the model's expected grades of twenty titles are the gains of NDCG@10, so the model itself has 1
and a network loses what it ranks otherwise. Judged queries are too few to tell networks apart: 209 of them
have a standard error of 0.010. There are four strata of about 400 queries:

- products: words of English product titles that no training query has;
- entities: people's questions (WebQuestions, `main/test.json` of brmson/dataset-factoid-webquestions,
  CC BY 4.0), with their answers, answers to others, and names of DBpedia;
- Korean and Chinese: queries of the folds 2 and 3 of data/multilingual.

Up to four titles are a query's own, ten are those of the stratum that share most with it, and the others are
drawn.
"""

import argparse
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from default_model.groups import TRAINING_FOLDS, VALIDATION_FOLDS
from default_model.mixture import read_judged
from default_model.multilingual import ListedPair, read_lists
from default_model.question_figures import interval
from default_model.typed import typed
from default_model.yardstick import overlap
from headroom.models.arrays import Floats
from headroom.models.classifier import Classifier

QUERIES = 400
"""The most queries of a stratum."""

TITLES = 20
NEAR = 10
"""The titles of a query, and those of them that share most with it and are not its own."""

POOL = 1500
"""Titles of a stratum that are looked at for each query."""

OWN = 4
"""The most titles that are a query's own."""

CUT_OFF = 10


class Asked(NamedTuple):
    """A query with its titles."""

    query: str
    titles: Sequence[str]


class Stratum(NamedTuple):
    """Queries of one kind, each with its own titles. titles: the pool that other titles are taken from."""

    language: str
    own: Mapping[str, Sequence[str]]
    titles: Sequence[str]

    def asked(self, rng: random.Random) -> list[Asked]:
        """Return some queries, each with TITLES titles."""
        drawn = rng.sample(sorted(self.own), min(QUERIES, len(self.own)))
        pool = rng.sample(sorted(set(self.titles)), min(POOL, len(set(self.titles))))
        score = overlap(pool, self.language)
        queries = []
        for query in drawn:
            own = rng.sample(list(self.own[query]), min(OWN, len(self.own[query])))
            near = sorted(pool, key=lambda title: -score(query, title))[:NEAR]
            titles = list(dict.fromkeys([*own, *near, *rng.sample(pool, TITLES)]))[:TITLES]
            queries.append(Asked(query, titles))
        return queries


def strata(data: Path, webquestions: Path) -> dict[str, Stratum]:
    """Return the strata by name. data: the directory of the training data."""
    return {
        "products": _products(data),
        "entities": _entities(data, webquestions),
        "Korean": _lists(data, "ko", ("sae4k", "stylekqc")),
        "Chinese": _lists(data, "zh", ("openbg_slice", "dureader_demo", "csl")),
    }


def _products(data: Path) -> Stratum:
    rng = random.Random(0)
    families = ("esci", "chorus")
    trained = {row.title for row in read_judged(data, TRAINING_FOLDS) if row.family in families}
    rows = [row for row in read_judged(data, VALIDATION_FOLDS) if row.family in families]
    titles = sorted({row.title for row in rows} - trained)
    queries = dict[str, Sequence[str]]()
    for title in titles:
        words = title.lower().split()[:8]
        queries[typed(rng.sample(words, min(len(words), rng.choice((2, 3, 4)))), rng)] = [title]
    return Stratum("en", queries, titles)


def _entities(data: Path, webquestions: Path) -> Stratum:
    rows = json.loads(webquestions.read_text("utf-8"))
    answers = {row["qText"]: row["answers"] for row in rows}
    names = {row.title for row in read_judged(data, VALIDATION_FOLDS) if row.family == "dbpedia"}
    return Stratum("en", answers, [*names, *(title for own in answers.values() for title in own)])


def _lists(data: Path, language: str, names: Iterable[str]) -> Stratum:
    lists = [one for name in names for one in _evenly(read_lists(data, name, VALIDATION_FOLDS))]
    own = {pairs[0].query: [pair.title for pair in pairs] for pairs in lists if pairs[0].language == language}
    return Stratum(language, own, [title for titles in own.values() for title in titles])


def _evenly(lists: Sequence[Sequence[ListedPair]]) -> Sequence[Sequence[ListedPair]]:
    """Return at most QUERIES lists of a set, so that a large set does not take a stratum's place alone."""
    return random.Random(0).sample(list(lists), min(QUERIES, len(lists)))


def ndcg10(gains: Floats, scores: Floats) -> float:
    """Return NDCG@10 of a list with gains that are any numbers of at least 0. gains, scores: (titles,)."""
    discounts = 1 / np.log2(np.arange(2, CUT_OFF + 2))
    ranked = gains[np.argsort(-scores, kind="stable")][:CUT_OFF]
    best = np.sort(gains)[::-1][:CUT_OFF]
    ideal = float(best @ discounts[: len(best)])
    return float(ranked @ discounts[: len(ranked)]) / ideal if ideal else 1.0


def grades_of(clf: Classifier, asked: Sequence[Asked]) -> list[Floats]:
    """Return the expected grades of each query's titles."""
    pairs = [(one.query, title) for one in asked for title in one.titles]
    borders = np.cumsum([len(one.titles) for one in asked])[:-1]
    return np.split(clf.score(pairs).expected_grade.astype(np.float64), borders)


def losses(gains: Sequence[Floats], scores: Sequence[Floats]) -> Floats:
    """Return what a network loses on each query: 1 − NDCG@10, (queries,).

    gains, scores: the expected grades that the model and the network give to each query's titles.
    """
    return np.array([1 - ndcg10(*both) for both in zip(gains, scores, strict=True)])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="checkpoint directory or hub id; default: the shipped model")
    parser.add_argument("--checkpoints", type=Path, nargs="+", required=True, help="of the networks")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--webquestions", type=Path, help="its directory; default: DATA/webquestions")
    options = parser.parse_args()
    model = Classifier.load(options.model, "cpu", "bfloat16")
    networks = {path.name: Classifier.load(path, "cpu", "bfloat16") for path in options.checkpoints}
    webquestions = options.webquestions or options.data / "webquestions"
    for name, stratum in strata(options.data, webquestions / "test.json").items():
        asked = stratum.asked(random.Random(0))
        gains = grades_of(model, asked)
        for network, clf in networks.items():
            lost = interval(losses(gains, grades_of(clf, asked)))
            print(f"{name:<10}{len(asked):5d} queries  {network:<20} loses {lost.text(4)}", flush=True)


if __name__ == "__main__":
    main()
