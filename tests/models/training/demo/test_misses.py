"""Near misses: titles that differ from the exact one in a number or a name, and what they are graded."""

import random
import re

import pytest

from models.quality.lexical import stems_of, words_of
from models.training.data import Example, Product, graded_target
from models.training.demo.dictionary import read_dictionary
from models.training.demo.misses import bundled, invented_name, number_group, series_group
from models.training.demo.shelf import Shelf, new_shelf
from models.training.demo.titles import BUNDLES, read_title, title_statistics

TITLES = (
    "Volta Cordless Drill 18V",
    "Volta Hammer Drill, 12 volt",
    "Ironside Deck Screw, 5 lb",
    "Ironside Angle Bracket, 4 inch, Zinc",
    "Nordhem Sofa, Grey",
    "Kettle Towel, White",
)


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    products = [Product(title, title.split()[0], "") for title in TITLES * 3]
    nouns = ("drill", "screw", "bracket", "sofa", "towel")
    return new_shelf(products, read_dictionary([]), title_statistics(products, nouns))


def grade(example: Example) -> float:
    return sum(grade * share for grade, share in enumerate(example.target))


def test_another_number_is_further_than_none_and_the_right_one_is_exact(shelf: Shelf) -> None:
    rng = random.Random(0)
    for _ in range(100):
        right, other, none, stranger = number_group(shelf, rng)
        assert right.title in TITLES
        assert len({example.query for example in (right, other, none, stranger)}) == 1
        (number,) = (word for word in re.split(r"[ ,]+", right.title) if any(map(str.isdigit, word)))
        assert number not in none.title
        assert number not in re.split(r"[ ,]+", other.title)
        assert re.search(r"\d", other.title)
        assert not re.search(r"\b(lb|inch|volt)\b", none.title)
        assert 3.9 < grade(right) <= 4
        assert grade(right) > grade(none) > grade(other) > 2.5
        assert grade(stranger) < 0.1


def test_a_series_that_nobody_knows_must_match_letter_by_letter(shelf: Shelf) -> None:
    rng = random.Random(1)
    for _ in range(100):
        same, other, without, another_thing, stranger = series_group(shelf, rng)
        names = set(words_of(same.title)) - set(words_of(without.title))
        assert names
        assert not names <= set(words_of(other.title))
        assert names <= set(words_of(another_thing.title))
        assert grade(same) > 3.9 > grade(without) > grade(other)
        assert grade(another_thing) < 1.5
        assert grade(stranger) < 0.1


def test_invented_names_are_many() -> None:
    rng = random.Random(2)
    assert len({invented_name(rng) for _ in range(300)}) > 250


def test_a_bundle_word_changes_the_title_and_not_the_grade() -> None:
    rng = random.Random(3)
    pair = Example("drill", "Volta Drill, Red", graded_target(4))
    for _ in range(30):
        changed = bundled(pair, rng)
        assert set(words_of(changed.title)) - set(words_of(pair.title)) <= BUNDLES
        assert changed.title != pair.title
        assert (changed.query, changed.target) == (pair.query, pair.target)
    already = Example("drill", "Drill Kit", graded_target(4))
    assert bundled(already, rng) == already


def test_a_drill_kit_is_a_drill_and_a_bit_set_is_none(shelf: Shelf) -> None:
    assert read_title("Volta Drill Kit", shelf.statistics).heads == ("drill",)
    assert not BUNDLES & set(stems_of(" ".join(read_title("Deck Screw Set, 5 lb", shelf.statistics).heads)))
