"""The probes: a model that fails them must be seen to, and the shipped one gets no worse."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from models import Classifier
from models.quality.labelled import read_labelled
from models.training.data import Judged
from models.training.demo.probes import (
    Floats,
    as_text,
    nonsense_queries,
    order_probes,
    ranking_answers,
    ranking_probes,
    read_exact,
    unrelated_probes,
    wording_probes,
)

SAMPLE = Path(__file__).parents[4] / "data" / "sample" / "calibration.jsonl.gz"


def counts_kits(pairs: Sequence[tuple[str, str]]) -> Floats:
    """Grade 3 if a digit of the query is in the title, 1 less with a bundle word, 0.5 less for a plural."""
    grades = []
    for query, title in pairs:
        asked = {character for character in query if character.isdigit()}
        grade = 3.0 if asked <= set(title) else 2.0
        grade -= title.endswith((" Kit", " Set", " Pack", " System"))
        grades.append(grade - 0.5 * query.split()[0].endswith("s"))
    return np.array(grades)


def test_wording_probes_find_what_a_word_costs() -> None:
    rows = read_exact()
    assert len(rows) >= 20
    assert all(row.query != row.other_number for row in rows)
    assert sum(bool(row.title_without_number) for row in rows) >= 10
    answers = {answer.name: answer for answer in wording_probes(counts_kits, rows)}
    kit = answers['"Kit" at the end of an exact title costs']
    assert (kit.value, kit.holds) == (1.0, False)
    assert answers["a missing number costs"].value > 0.5
    assert 0 < answers["plural and singular apart"].value <= 0.5
    assert "FAILS" in as_text([kit])


def test_titles_of_other_queries_and_nonsense_are_asked_about_by_source() -> None:
    judged = [Judged(f"q{n % 5}", f"t{n}", 4, "esci_us_150q", 2) for n in range(20)]
    answers = unrelated_probes(lambda pairs: np.full(len(pairs), 0.55), judged)
    assert {answer.name: answer.holds for answer in answers} == {
        "a nonsense query": False,
        "another query's title, esci": True,
        "another query's title, products": True,
    }
    assert len(set(nonsense_queries(100))) > 90


def test_the_ranking_of_products_holds_by_the_low_end_of_its_interval() -> None:
    judged = [
        Judged(f"red thing {n}", title, grade, "esci_us_150q", 2)
        for n in range(40)
        for grade, title in ((4, f"crimson {n}"), (0, "red"), (1, "other"))
    ]
    right = np.eye(5)[[row.grade for row in judged]]
    found = ranking_probes(right, judged, resamples=100)
    assert all(answer.holds for answer in ranking_answers("products", found["products"]))
    wrong = ranking_probes(right[:, ::-1], judged, resamples=100)
    assert not any(answer.holds for answer in ranking_answers("products", wrong["products"]))


@pytest.fixture(scope="module")
def clf() -> Classifier:
    return Classifier.load(device="cpu", dtype="float32")


def test_the_shipped_model_passes_the_probes_of_wording(clf: Classifier) -> None:
    answers = wording_probes(lambda pairs: clf.score(list(pairs)).expected_grade, read_exact())
    assert [answer.name for answer in answers if not answer.holds] == []


def test_the_shipped_model_puts_the_quadruples_in_order(clf: Classifier) -> None:
    """The aims are 90 and 65 %: docs/model-card.md says what fails."""
    sixty, hundred = order_probes(lambda pairs: clf.score(list(pairs)).expected_grade)
    assert sixty.value >= 0.88
    assert hundred.value >= 0.6


def test_the_shipped_model_gives_nonsense_little(clf: Classifier) -> None:
    """The aims are 0.5, and 0.6 for other queries' titles: docs/model-card.md says what there is."""
    pairs = read_labelled(SAMPLE, grades=5)
    rows = [Judged(pair.query, pair.title, pair.grade, "esci_us_150q", 2) for pair in pairs]
    answers = unrelated_probes(lambda asked: clf.score(list(asked)).expected_grade, rows)
    values = {answer.name: answer.value for answer in answers}
    assert values["a nonsense query"] <= 0.55
    assert values["another query's title, products"] <= 0.9
