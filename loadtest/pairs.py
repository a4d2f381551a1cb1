"""The texts of the traffic: query–title pairs from a file, or made up with the lengths of product search."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import csv, json, parquet

from headroom.loadtest.plan import PlanError

Pair = tuple[str, str]

QUERIES = 500
TITLES_EACH = 20
_SPECIAL_TOKENS = 3
"""[CLS], and [SEP] after each text; they count as tokens of a pair."""

_NOUNS = (
    "table chair lamp desk shelf cabinet mirror rug sofa bed pillow blanket towel curtain basket box "
    "bag case cover holder stand rack hook bracket screw nail bolt hinge handle lock key door window "
    "frame panel board plate bowl cup mug glass bottle jar knife fork spoon pan pot kettle oven grill "
    "stove fan heater filter pump hose pipe valve tap sink light bulb cable charger battery adapter "
    "plug switch socket camera phone tablet laptop keyboard mouse screen speaker headphones watch "
    "ring necklace shirt jacket coat dress skirt shoes boots socks gloves hat belt tent rope bike "
    "helmet ball net toy puzzle book pen paper tape glue paint brush tool hammer drill saw blade"
).split()
_ADJECTIVES = (
    "black white red blue green grey brown silver gold small large mini big long short wide thin "
    "heavy light soft hard round square folding portable wireless electric digital outdoor indoor "
    "modern classic vintage steel wood metal plastic leather cotton glass stone rubber waterproof "
    "adjustable double single new original professional"
).split()
_FILLERS = (
    "with for and in of set pack inch feet piece 2 3 4 6 8 10 12 20 24 50 100 home kitchen office garden"
).split()


def made_up_pairs(seed: int) -> list[Pair]:
    """Return QUERIES × TITLES_EACH pairs of common words, whose tokens have mean 25, p95 39 and p99 48.

    These are the lengths of a public product-search set, special tokens included; a gamma distribution of
    shape 9.4 has them. A word counts as one token, which is true of most vocabularies of English words.
    """
    rng = np.random.default_rng([seed, 2])
    words = np.array(_ADJECTIVES + _FILLERS + _NOUNS)
    pairs = []
    for subject in rng.choice(_NOUNS, QUERIES).tolist():
        tokens = np.clip(np.rint(rng.gamma(9.4, 25 / 9.4, TITLES_EACH)), 8, 128).astype(int)
        lengths = tokens - _SPECIAL_TOKENS
        kinds = rng.choice(_ADJECTIVES, min(rng.poisson(2.5), lengths.min() - 2)).tolist()
        for number, length in enumerate(lengths.tolist()):
            title = rng.choice(words, length - len(kinds) - 2).tolist()
            title.insert(number % (len(title) + 1), subject)
            pairs.append((" ".join([*kinds, subject]), " ".join(title)))
    return pairs


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a csv, tsv, jsonl or parquet file with columns `query` and `title`, in its order.

    The first three may be packed with gzip. Raises PlanError that names the file.
    """
    name = path.name.lower()
    kind = Path(name.removesuffix(".gz")).suffix
    if kind not in (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet") or name.endswith(".parquet.gz"):
        raise PlanError(
            f"--pairs: {path} is none of .csv, .tsv, .jsonl, .ndjson (each perhaps with .gz), .parquet"
        )
    try:
        table = _read(path, kind).select(["query", "title"])
    except (OSError, KeyError, pyarrow.ArrowException) as error:
        raise PlanError(f"--pairs: {path} cannot be read: {' '.join(str(error).split())}") from None
    if not len(table):
        raise PlanError(f"--pairs: {path} holds no pairs")
    pairs = [(row["query"], row["title"]) for row in table.to_pylist()]
    for number, (query, title) in enumerate(pairs, start=1):
        if not isinstance(query, str) or not isinstance(title, str) or not query.strip():
            raise PlanError(f"--pairs: {path}, row {number}: expected the texts query and title")
        if kind == ".tsv" and "\n" in query + title:
            raise PlanError(f"--pairs: {path}, row {number}: a quote does not close in its line; double it")
    return pairs


def _read(path: Path, kind: str) -> Any:
    if kind == ".parquet":
        return parquet.read_table(path, columns=["query", "title"])
    texts = pyarrow.schema([("query", pyarrow.string()), ("title", pyarrow.string())])
    if kind in (".jsonl", ".ndjson"):
        return json.read_json(path, parse_options=json.ParseOptions(explicit_schema=texts))
    return csv.read_csv(
        path,
        parse_options=csv.ParseOptions(delimiter="\t" if kind == ".tsv" else ",", newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types=texts, include_columns=["query", "title"]),
    )
