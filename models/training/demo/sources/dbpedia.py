"""DBpedia-Entity v2: entities judged for keyword, list and question queries (Hasibi et al., SIGIR 2017).

Tab-separated files, from iai-group/DBpedia-Entity:
- queries-v2.txt: query id, query;
- qrels-v2.txt: query id, "Q0", <dbpedia:ENTITY>, grade (0, 1 or 2);
- annotator_agreements.tsv, with a header: query id, <dbpedia:ENTITY>, agreement of the crowd (Fleiss' P_i,
  0 to 1), agreement of experts.

An entity's title is its name in the URI. Agreement makes five grades of three.
"""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from models.training.demo.sources.judging import Pair

AGREED = 0.4  # if the crowd agrees at least so much, a 2 counts as exact


def queries(folder: Path) -> dict[str, str]:
    """Return the text of each query by its id."""
    return dict(_rows(folder / "queries-v2.txt"))


def judged_pairs(folder: Path) -> Iterator[Pair]:
    """Return every judged entity, in the file's order."""
    texts = queries(folder)
    agreement = {
        (query, entity): crowd for query, entity, crowd, _ in _rows(folder / "annotator_agreements.tsv")
    }
    for query, _, entity, grade in _rows(folder / "qrels-v2.txt"):
        yield texts[query], _title(entity), five_grades(int(grade), float(agreement[query, entity]))


def five_grades(grade: int, agreement: float) -> int:
    """Return the grade (0 to 4) of a 0, a 1 or a 2, by how far the crowd agreed on it."""
    if grade == 0:
        return 0 if agreement == 1 else 1
    if grade == 1:
        return 2
    return 4 if agreement >= AGREED else 3


def _title(entity: str) -> str:
    """Return an entity's title: <dbpedia:Caf%C3%A9_au_lait> is "Café au lait"."""
    return unquote(entity.removeprefix("<dbpedia:").removesuffix(">")).replace("_", " ")


def _rows(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\n").split("\t")
