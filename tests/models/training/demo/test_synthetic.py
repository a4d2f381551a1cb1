"""The made-up pairs' grades: what a wrong rule would teach, every model would get wrong."""

import random
import re

import pytest

from models.quality.lexical import stem, words_of
from models.training.data import Product
from models.training.demo.dictionary import read_dictionary
from models.training.demo.noise import misspelled
from models.training.demo.pseudo import dictionary_pair, pseudo_pair
from models.training.demo.shelf import ACCESSORY, Query, Shelf, graded, new_shelf
from models.training.demo.synthetic import product_pair
from models.training.demo.titles import read_title, title_statistics

NOUNS = ("case", "phone", "screw", "bracket", "sofa", "drill", "towel", "holder")
TITLES = (
    "Acme Clear Case for iPhone 12",
    "Acme Black Case, Slim",
    "Volta Phone 64GB Blue",
    "Volta Phone, 128GB Black",
    "Ironside Deck Screw, 5 lb",
    "Ironside Wood Screw 2 inch",
    "Ironside Angle Bracket, Zinc",
    "Ironside Corner Bracket (4 Pack)",
    "Nordhem Green Sofa",
    "Nordhem Grey Sofa with Storage",
    "Volta Cordless Drill 18V",
    "Volta Hammer Drill, 12V",
    "Kettle & Co Napkin Holder for Kitchen",
    "Kettle & Co Phone Holder, Black",
    "Kettle & Co Bath Towel, White",
    "Kettle & Co Dish Towel - Blue",
    "Acme Phone Case, Red",
    "Nordhem Sofa, Red",
    "Ironside Screw, Brass",
    "Ironside Bracket, Brass",
    "Volta Drill, Red",
    "Kettle & Co Towel, Red",
    "Kettle & Co Holder, Red",
)


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    products = [
        Product(title, title.split()[0], f"{title} made to last a very long time") for title in TITLES
    ]
    dictionary = read_dictionary(
        ["sofa, couch (seat): an upholstered seat for more than one person", "seat: furniture for sitting on"]
    )
    return new_shelf(products, dictionary, title_statistics(products, NOUNS))


def grade(shelf: Shelf, words: str, head: str | None, title: str) -> float:
    read = read_title(title, shelf.statistics)
    return graded(Query(tuple(words.split()), head), read, frozenset(), shelf)


def test_a_title_is_read_into_what_it_is_and_what_it_is_for(shelf: Shelf) -> None:
    title = read_title("Kettle & Co Napkin Holder for Kitchen Towels", shelf.statistics)
    assert title.heads == ("holder",)
    assert {"napkin", "holder"} <= title.main
    assert {"kitchen", "towel"} <= title.aside


def test_the_thing_with_everything_asked_for_is_exact(shelf: Shelf) -> None:
    assert grade(shelf, "green sofa", "sofa", "Nordhem Green Sofa") == 4


def test_another_colour_is_close_and_another_kind_of_thing_is_not(shelf: Shelf) -> None:
    other_colour = grade(shelf, "green sofa", "sofa", "Nordhem Grey Sofa with Storage")
    other_thing = grade(shelf, "green sofa", "sofa", "Green Bath Towel")
    assert 2.5 < other_colour < 4
    assert 0 < other_thing < 1.5


def test_an_accessory_for_the_thing_is_between_another_colour_and_another_thing(shelf: Shelf) -> None:
    accessory = grade(shelf, "volta phone", "phone", "Acme Case for Volta Phone")
    assert grade(shelf, "volta phone", "phone", "Acme Phone, Black") > accessory
    assert accessory > grade(shelf, "volta phone", "phone", "Volta Cordless Drill 18V")


def test_nothing_in_common_is_irrelevant(shelf: Shelf) -> None:
    assert grade(shelf, "green sofa", "sofa", "Ironside Wood Screw 2 inch") == 0


def test_a_kindred_thing_is_nearer_than_an_accessory_and_further_than_the_thing_itself() -> None:
    titles = (
        "Reebok Tennis Court Sneaker, White",
        "Puma Tennis Court Sandal, White",
        "Volta Optical Mouse, White",
        "Ratty Stuffed Toy Rat, Grey",
    )
    products = [Product(title, title.split()[0], "") for title in (*titles * 3, *TITLES)]
    dictionary = read_dictionary(
        [
            "sneaker (shoe): a canvas shoe with a pliable sole",
            "sandal (shoe): a shoe held on with straps",
            "mouse (rodent): a small animal that gnaws",
            "rat (rodent): a larger animal that gnaws",
        ]
    )
    nouns = ("sneaker", "sandal", "mouse", "rat")
    shelf = new_shelf(products, dictionary, title_statistics(products, nouns))

    assert shelf.kin == {"sandal": ("sneaker",), "sneaker": ("sandal",)}  # no mouse is sold as a rat
    kindred = grade(shelf, "tennis sandal", "sandal", titles[0])
    assert grade(shelf, "tennis sandal", "sandal", "Laces for Tennis Sandal, White") < kindred
    assert kindred < grade(shelf, "black sandal", "sandal", titles[1])


def test_details_alone_are_exact_only_when_all_are_there(shelf: Shelf) -> None:
    assert grade(shelf, "volta 64gb", None, "Volta Phone 64GB Blue") == 4
    assert grade(shelf, "volta 64gb", None, "Volta Phone, 128GB Black") < 3
    assert grade(shelf, "iphone 12", None, "Acme Clear Case for iPhone 12") == ACCESSORY


def test_a_description_half_answers_what_the_title_leaves_out(shelf: Shelf) -> None:
    title = read_title("Nordhem Sofa", shelf.statistics)
    query = Query(("green", "sofa"), "sofa")
    told = graded(query, title, frozenset({"green"}), shelf)
    assert graded(query, title, frozenset(), shelf) < told < 4


def test_pairs_depend_on_the_seed_alone_and_cover_every_grade(shelf: Shelf) -> None:
    rng, again = random.Random(7), random.Random(7)
    pairs = [product_pair(shelf, rng) for _ in range(400)]
    assert pairs == [product_pair(shelf, again) for _ in range(400)]
    assert {max(range(5), key=pair.target.__getitem__) for pair in pairs} == {0, 1, 2, 3, 4}
    assert all(pair.query.strip() and abs(sum(pair.target) - 1) < 1e-9 for pair in pairs)


def test_pseudo_pairs_are_graded_by_the_words_the_title_holds() -> None:
    rng = random.Random(3)
    lexicon = sorted(
        {f"{a}{b}{c}" for a in ("bar", "lim", "tok") for b in ("an", "esk", "ul") for c in ("o", "ine")}
    )
    for _ in range(300):
        pair = pseudo_pair(lexicon, rng)
        asked = {stem(word) for word in words_of(pair.query)}
        there = {stem(word) for word in words_of(pair.title)}
        thing = re.split(r" (?:for|fits|compatible with) ", pair.title)[0]
        if asked <= there:  # said of the thing itself, or only of what it is made for
            itself = asked & {stem(word) for word in words_of(thing)}
            assert pair.target[4 if itself else 2] > 0.5
        if pair.target[0] > 0.9:
            assert not asked & there & set(lexicon)


def test_a_synonym_is_exact_and_a_wider_word_less_so() -> None:
    dictionary = read_dictionary(
        [
            "sofa, couch (seat): an upholstered bench",
            "seat: a thing to rest upon",
            "stool (seat): a plain one",
        ]
    )
    grades = {}
    rng = random.Random(1)
    for _ in range(400):
        pair = dictionary_pair(dictionary, rng)
        grades[pair.query, pair.title] = sum(at * share for at, share in enumerate(pair.target))
    assert grades["sofa", "couch"] > 3.8
    assert 2 < grades["sofa", "a thing to rest upon"] < 3


def test_a_slip_of_the_fingers_spares_no_capital() -> None:
    rng = random.Random(0)
    slips = {misspelled("ESCAPE", rng) for _ in range(200)}

    assert len(slips) > 10
    assert all(abs(len(slip) - 6) <= 1 for slip in slips)
