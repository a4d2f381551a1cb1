"""The checks of a model: one that fails them must be seen to fail."""

from collections.abc import Sequence

import numpy as np

from models.training.shipped.checks import (
    Floats,
    quadruple_answers,
    ranking_answers,
    read_table,
    wording_answers,
)
from models.training.shipped.mixture import Judged


def counts_kits(pairs: Sequence[tuple[str, str]]) -> Floats:
    """Grade 3 if the query's digits are in the title, 1 less with a bundle word, 0.5 less for a plural."""
    grades = []
    for query, title in pairs:
        asked = {character for character in query if character.isdigit()}
        grade = 3.0 if asked <= set(title) else 2.0
        grade -= title.endswith((" Kit", " Set", " Pack", " System"))
        grades.append(grade - 0.5 * query.split()[0].endswith("s"))
    return np.array(grades)


def test_a_word_that_costs_too_much_is_found() -> None:
    answers = {answer.name: answer for answer in wording_answers(counts_kits)}
    kit = answers['"Kit" at the end of an exact title costs']
    assert (kit.value, kit.holds) == (1.0, False)
    assert answers["a missing number costs"].value > 0.5
    assert 0 < answers["plural and singular apart"].value <= 0.5
    assert "FAILS" in str(kit)


def test_quadruples_are_counted_by_what_comes_first_and_last() -> None:
    rows = read_table("quadruples.tsv")
    right = {title: 4.0 - at for row in rows for at, title in enumerate(list(row.values())[-4:])}
    answers = quadruple_answers(lambda pairs: np.array([right[title] for _, title in pairs]))
    assert len(answers) == 8
    assert sum(answer.holds for answer in answers) == 8
    level = quadruple_answers(lambda pairs: np.ones(len(pairs)))
    assert not any(answer.holds for answer in level)  # a tie is no first place


def test_a_model_that_ranks_at_random_is_not_better_than_words() -> None:
    rng = np.random.default_rng(0)
    judged = [
        Judged(
            f"red lamp {q}", " ".join(["red", "lamp", str(q)][:grade]) + " thing", grade, "esci_us_150q", 2
        )
        for q in range(20)
        for grade in range(4)
    ]
    random_order = ranking_answers(rng.dirichlet(np.ones(5), len(judged)), judged, resamples=200)
    assert not any(answer.holds for answer in random_order)
