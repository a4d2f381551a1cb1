"""Downloads the training data from public repositories and prepares it for
default_model.mixture.

    python -m default_model.fetch --out runs/data

Files that are there with the right SHA-256 are not fetched again, so an interrupted run goes on where it
stopped. The raw files (64 MB) and their licences are listed in public.yaml. Chorus's product text (Icecat),
the movies and what is CC BY-SA among the lists are for training only: do not commit them.

ESCI (Reddy et al. 2022, arXiv:2206.06588): what people searched for on Amazon, and products judged for it. An
irrelevant product was at least retrieved for the query, so it gets grade 1; grade 0 is a product of another
query. Chorus: electronics of the Icecat catalogue, rated from 0 to 3 for 135 shop queries by up to three
people. DBpedia-Entity v2 (Hasibi et al., SIGIR 2017): entities judged from 0 to 2 by a crowd, whose agreement
makes five grades of three. ARCS (Socrata, 2015): data sets of public catalogues, judged from 0 to 3. MSRD's
movies are used unchanged.
"""

import argparse
import csv
import gzip
import hashlib
import json
import logging
import random
import socket
import statistics
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml
from torch.hub import download_url_to_file

from default_model.fetch_lists import make_lists
from default_model.groups import fold_of, json_lines
from default_model.mixture import Judged
from headroom.models.errors import ModelError
from headroom.models.files import write_whole

log = logging.getLogger(__name__)

PUBLIC = Path(__file__).with_name("public.yaml")
GITHUB = "https://raw.githubusercontent.com"

Pair = tuple[str, str, int]
"""Query, title, grade from 0 to 4."""

ESCI_RATINGS = {100: 4, 10: 3, 1: 2, 0: 1}
ESCI_LABELS = {"E": 4, "S": 3, "C": 2, "I": 1}
UNRELATED_PER_QUERY = 8

AGREED = 0.4
"""If the crowd of DBpedia-Entity agrees at least so much, a 2 counts as exact."""


def fetch(public: dict[str, Any], out: Path, *, server: str = GITHUB) -> None:
    """Put into `out` the judged pairs that the shipped model was trained on, and the lists of the recipes.

    public: the content of public.yaml. Raises ModelError at the first file that cannot be fetched or that
    differs. Finished files stay.
    """
    for repository in public["repositories"]:
        _download(repository, out / repository["source"], server)
    lines = "".join(
        f"{json.dumps(asdict(pair), ensure_ascii=False)}\n" for pair in judged_pairs(out)
    ).encode()
    if hashlib.sha256(lines).hexdigest() != public["graded"]:
        raise ModelError(f"{out}: the pairs are not those that the shipped model was trained on")
    write_whole(out / "graded.jsonl.gz", gzip.compress(lines, mtime=0))
    for repository in public["lists"]:
        folder = out / "multilingual" / repository["set"]
        _download(repository, folder / "raw", server)
        write_whole(
            folder / "pairs.jsonl.gz", gzip.compress(make_lists(repository["set"], folder / "raw"), mtime=0)
        )


def _download(repository: Mapping[str, Any], folder: Path, server: str) -> None:
    """Put the files of a repository into a folder, each under its `name` if it has one."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in repository["files"]:
        path = folder / file.get("name", Path(file["path"]).name)
        if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == file["sha256"]:
            continue
        url = f"{server}/{repository['repository']}/{repository['commit']}/{file['path']}"
        try:
            download_url_to_file(url, str(path), file["sha256"], progress=False)
        except (OSError, RuntimeError) as error:
            raise ModelError(f"{url}: {error}; the same command goes on with this file") from error
        log.info("%s (%s)", url, repository["licence"])


def judged_pairs(raw: Path) -> list[Judged]:
    """Return each (query, title) once, in order of first occurrence, with the lower median of its grades.

    raw: the directory of the files of public.yaml, each as SOURCE/NAME. A pair that two sources judged is
    listed under the first.
    """
    sources = {
        "esci_us_150q": esci_pairs,
        "esci_us_150q:random_neg": esci_unrelated,
        "esci_extra": esci_extra,
        "chorus_icecat": chorus_pairs,
        "dbpedia_entity_v2": dbpedia_pairs,
        "socrata_arcs": socrata_pairs,
    }
    first: dict[tuple[str, str], str] = {}
    grades = defaultdict[tuple[str, str], list[int]](list)
    for source, pairs_of in sources.items():
        for query, title, grade in pairs_of(raw):
            first.setdefault((query, title), source)
            grades[query, title].append(grade)
    return [
        Judged(query, title, statistics.median_low(grades[query, title]), source, fold_of(query))
        for (query, title), source in first.items()
    ]


def grade_of_votes(votes: Sequence[int]) -> int:
    """Return the grade (0 to 4) of votes from 0 to 3, by their mean: 0, (0, 1], (1, 2), [2, 3), 3."""
    total = sum(votes)
    count = len(votes)
    return sum((total > 0, total > count, total >= 2 * count, total >= 3 * count))


def esci_pairs(raw: Path) -> Iterator[Pair]:
    """Yield the pairs of the 150 judged queries, in the file's order."""
    folder = raw / "esci_us_150q"
    titles = {row["asin"]: row["title"] for row in json_lines(folder / "ubi_ecommerce_products.json.gz")}
    judgments = json.loads((folder / "esci_us_judgments.json").read_text(encoding="utf-8"))
    for judged in judgments["judgmentRatings"]:
        for rating in judged["ratings"]:
            yield judged["query"], titles[rating["docId"]], ESCI_RATINGS[int(float(rating["rating"]))]


def esci_unrelated(raw: Path) -> Iterator[Pair]:
    """Yield each of the 150 queries with products of others that share no word with it: grade 0.

    The seed makes them the same every time, unless Python changes random.choice.
    """
    own = defaultdict[str, set[str]](set)
    for query, title, _ in esci_pairs(raw):
        own[query].add(title)
    titles = sorted(set().union(*own.values()))
    rng = random.Random(7)
    for query in sorted(own):
        words = set(query.lower().split())
        drawn = 0
        while drawn < UNRELATED_PER_QUERY:
            title = rng.choice(titles)
            if title not in own[query] and words.isdisjoint(title.lower().split()):
                drawn += 1
                yield query, title, 0


def esci_extra(raw: Path) -> Iterator[Pair]:
    """Yield the pairs of other queries."""
    for name in ("esci.csv", "sample_2c_full_data.csv"):
        for row in _csv_rows(raw / "esci_us_150q" / name):
            yield row["query"], row["product_title"], ESCI_LABELS[row["esci_label"][0]]


def chorus_pairs(raw: Path) -> Iterator[Pair]:
    """Yield the rated pairs, graded by the three ratings if there are three, else by the agreed one."""
    folder = raw / "chorus_icecat"
    titles = dict[str, str]()
    for part in (1, 2, 3, 4):
        with zipfile.ZipFile(folder / f"{part}.json.zip") as archive:
            titles |= {row["id"]: row["title"] for row in json.loads(archive.read(f"{part}.json"))}
    votes = {
        (row["query"], row["docid"]): [int(row[f"agent_{agent}_rating"]) for agent in (1, 2, 3)]
        for row in _csv_rows(folder / "Broad_Query_Set_individual_ratings.csv")
    }
    for row in _csv_rows(folder / "Broad_Query_Set_rated.csv"):
        query = row["query"]
        product = row["docid"]
        yield query, titles[product], grade_of_votes(votes.get((query, product), [int(row["rating"])]))


def dbpedia_pairs(raw: Path) -> Iterator[Pair]:
    """Yield every judged entity, in the file's order, graded also by how far the crowd agreed."""
    folder = raw / "dbpedia_entity_v2"
    texts = dict(_tab_rows(folder / "queries-v2.txt"))
    agreement = {(row[0], row[1]): row[2] for row in _tab_rows(folder / "annotator_agreements.tsv")}
    for query, _, entity, grade in _tab_rows(folder / "qrels-v2.txt"):
        title = unquote(entity.removeprefix("<dbpedia:").removesuffix(">")).replace("_", " ")
        agreed = float(agreement[query, entity])
        five = {"0": 0 if agreed == 1 else 1, "1": 2, "2": 4 if agreed >= AGREED else 3}
        yield texts[query], title, five[grade]


def socrata_pairs(raw: Path) -> Iterator[Pair]:
    """Yield every judged data set, in the file's order; a data set that was judged twice comes twice."""
    for row in _csv_rows(raw / "socrata_arcs" / "all.csv"):
        votes = [int(vote) for vote in row["relevance"].split()]
        yield row["query"], row["name"], grade_of_votes([vote for vote in votes if vote >= 0])


def _csv_rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _tab_rows(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\n").split("\t")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/data"), help="default: %(default)s")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    socket.setdefaulttimeout(30)  # seconds
    try:
        fetch(yaml.safe_load(PUBLIC.read_text(encoding="utf-8")), options.out)
    except ModelError as error:
        sys.exit(f"fetch: {error}")
    log.info("%s holds the training data", options.out)


if __name__ == "__main__":
    main()
