"""Lists with a title that contradicts the query: it costs grades; the same fact in other words does not."""

import random

import pytest

from default_model.attributes import LANGUAGES, AttributeLists
from default_model.contradictions import FITS, OTHER_VALUE, ContradictedTitles, Fitting
from default_model.differences import read_differences
from default_model.groups import Example, Group
from default_model.written_contradictions import WrittenContradictions


def expected(example: Example) -> float:
    return sum(grade * share for grade, share in enumerate(example.target))


def test_a_changed_attribute_costs_two_grades_and_other_words_for_it_none() -> None:
    lists = ContradictedTitles([Fitting(["trackball"], "Acme Wireless Trackball small")], "en")
    rng = random.Random(0)
    grades = dict[str, float]()
    for _ in range(200):
        group = lists.group(rng)
        if "less" in group[0].query:  # wireless or cordless
            grades |= {example.title: expected(example) for example in group}
    assert grades["Acme Wired Trackball small"] == pytest.approx(OTHER_VALUE, abs=0.1)
    assert grades["Acme Cordless Trackball small"] == pytest.approx(FITS, abs=0.1)
    assert grades["Acme Wireless Trackball small"] == pytest.approx(FITS, abs=0.1)


def test_texts_that_measure_the_model_are_not_drawn() -> None:
    pairs = [Fitting(["trackball"], "Acme wireless trackball"), Fitting(["saw"], "Bosch cordless saw")]
    lists = ContradictedTitles(pairs, "en", without=["acme WIRELESS trackball", "wireless saw"])
    rng = random.Random(0)
    groups = [lists.group(rng) for _ in range(60)]
    assert not any(example.query.lower() == "wireless saw" for group in groups for example in group)
    assert {group[0].query.split()[-1] for group in groups} & {"trackball"} == set()


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
