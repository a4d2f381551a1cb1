"""Lists with a title that contradicts the query: it is graded below what fits."""

import random

import pytest

from default_model.attributes import LANGUAGES, AttributeLists
from default_model.contradictions import FITS
from default_model.differences import read_differences
from default_model.groups import Example, Group
from default_model.written_contradictions import WrittenContradictions


def expected(example: Example) -> float:
    return sum(grade * share for grade, share in enumerate(example.target))


@pytest.mark.parametrize("language", LANGUAGES)
def test_made_up_lists_put_what_fits_a_grade_above_what_contradicts(language: str) -> None:
    rng = random.Random(0)
    written = WrittenContradictions(language)
    drawers = (written.group, AttributeLists(language, taught=True).group)
    for draw in drawers:
        for _ in range(200):
            check_margin(draw(rng))


def check_margin(group: Group) -> None:
    grades = [expected(example) for example in group]
    assert all(example.taught for example in group)
    assert max(grades) == pytest.approx(FITS, abs=0.1)
    assert not any(2.1 < grade < 3.1 for grade in grades)
    fitting = {example.title for example, grade in zip(group, grades, strict=True) if grade > 3.5}
    assert fitting.isdisjoint(
        example.title for example, grade in zip(group, grades, strict=True) if grade < 2.1
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_form_stands_for_two_values_that_contradict_each_other(language: str) -> None:
    for axis in read_differences(language).axes:
        forms = [form.removeprefix("-").lower() for value in axis for form in set(value)]
        assert len(forms) == len(set(forms)), axis
