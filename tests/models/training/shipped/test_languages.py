"""Korean and Chinese pairs teach the grades only if what stands for a grade is what the catalogue says."""

from __future__ import annotations

import random
from pathlib import Path

from models.training.shipped.languages import language_group, read_languages

FIXTURES = Path(__file__).parents[3] / "fixtures"


def test_groups_rank_the_thing_before_what_stands_in_for_it_and_what_goes_with_it() -> None:
    languages, rng = read_languages(), random.Random(0)
    assert {language: len(things) for language, things in languages.things.items()} == {"ko": 260, "zh": 265}
    for _ in range(500):
        group = language_group(languages, rng)
        grades = [sum(grade * share for grade, share in enumerate(example.target)) for example in group]
        assert len({example.query for example in group}) == 1
        assert grades[0] > 3.5
        assert grades[-1] < 0.5


def test_no_query_of_the_tests_is_trained_on() -> None:
    asked = set()
    for language in ("ko", "zh"):
        lines = (FIXTURES / f"quadruples_{language}.tsv").read_text(encoding="utf-8").splitlines()
        rows = [line.split("\t") for line in lines if not line.startswith("#")][1:]
        assert len(rows) == 60
        asked |= {row[2] for row in rows}  # the exact titles
    languages = read_languages()
    titles = {title for things in languages.things.values() for thing in things for title in thing.titles}
    titles |= {question.exact for question in languages.questions}
    assert not asked & titles
    assert not any("오리" in question.text for question in languages.questions)
