"""The things we wrote down, and what pairs made from them are graded."""

import random
from collections import defaultdict
from pathlib import Path

import pytest
from pydantic import ValidationError

from models.quality.lexical import stems_of
from models.training.data import Product
from models.training.demo.catalogue import Catalogue, Thing, new_catalogue, read_things
from models.training.demo.catalogue_pairs import thing_group, thing_pair
from models.training.demo.titles import read_title, title_statistics

QUADRUPLES = Path("tests/fixtures/quadruples.tsv")


def _thing(names: str, **lists: str) -> Thing:
    given = {"instead": "nothing else", "with": "nothing more", "traits": "large", "titles": names, **lists}
    return Thing.model_validate(
        {
            "names": names.split(", "),
            **{field.removesuffix("_"): value.split(", ") for field, value in given.items()},
        }
    )


SOFA = _thing(
    "sofa, couch",
    kinds="leather sofa, sectional",
    instead="futon",
    with_="slipcover",
    traits="grey, velvet",
    brands="Acme",
    lines="Acme Comfort 2, Acme Comfort 3",
    titles="Acme Three-Seat Couch",
)
FUTON = _thing("futon", instead="sofa", with_="futon cover", titles="Folding Futon")
SLIPCOVER = _thing("slipcover, sofa cover", instead="throw", with_="foam", titles="Stretch Slipcover")
DRILL = _thing("drill", instead="screwdriver", with_="drill bit", titles="Hammer Drill")


@pytest.fixture
def catalogue() -> Catalogue:
    return new_catalogue({"furniture": [SOFA, FUTON, SLIPCOVER], "tools": [DRILL]}, [])


def _grade(target: tuple[float, ...]) -> float:
    return sum(grade * share for grade, share in enumerate(target))


def _by_query(catalogue: Catalogue, count: int = 20_000) -> dict[tuple[str, str], set[float]]:
    rng = random.Random(0)
    found = defaultdict(set)
    for _ in range(count):
        pair = thing_pair(catalogue, rng)
        found[pair.query.lower(), pair.title.lower()].add(round(_grade(pair.target), 1))
    return found


def test_every_thing_that_is_committed_reads_and_contradicts_nothing() -> None:
    departments = read_things()
    assert len(departments) >= 20
    for things in departments.values():
        assert len(things) >= 40
        for thing in things:
            own = {stems_of(name) for name in (*thing.names, *thing.kinds)}
            assert all(own), thing.names
            assert not own & {stems_of(name) for name in thing.instead}, thing.names
            assert not own & {stems_of(name) for name in thing.goes_with}, thing.names


def test_the_hand_written_quadruples_are_not_among_the_titles() -> None:
    """They are the test of what the catalogue teaches, and were written before it."""
    tested = {
        cell.lower()
        for line in QUADRUPLES.read_text(encoding="utf-8").splitlines()
        for cell in line.split("\t")[2:]
    }
    written = {
        title.lower() for things in read_things().values() for thing in things for title in thing.titles
    }
    assert len(tested) > 200
    assert not tested & written


def test_names_lead_to_the_only_thing_that_has_them(catalogue: Catalogue) -> None:
    assert catalogue.by_name[stems_of("couches")] == catalogue.by_name[stems_of("sofa")] == 0
    assert catalogue.by_name[stems_of("sectional")] == 0
    twice = new_catalogue({"a": [_thing("mouse")], "b": [_thing("mouse"), SOFA]}, [])
    assert stems_of("mouse") not in twice.by_name


def test_a_name_leads_to_its_thing_though_it_is_a_narrower_kind_of_another() -> None:
    found = new_catalogue({"a": [SOFA, _thing("sectional")]}, [])
    assert found.by_name[stems_of("sectional")] == 1


def test_real_titles_are_shelved_under_the_longest_name_that_they_end_their_first_phrase_with() -> None:
    products = [Product("Grey Velvet Sofa Cover", "", ""), Product("Red Sofa, large", "", "")] * 3
    statistics = title_statistics(products, {"sofa", "cover"})
    titles = [read_title(product.title, statistics) for product in products[:2]]
    found = new_catalogue({"a": [SOFA, SLIPCOVER]}, titles)
    assert found.shelved == {1: ("Grey Velvet Sofa Cover",), 0: ("Red Sofa, large",)}


def test_synonyms_are_exact_and_substitutes_accessories_and_others_are_below(catalogue: Catalogue) -> None:
    grades = _by_query(catalogue)
    assert grades["sofa", "acme three-seat couch"] == {4.0}
    assert grades["couch", "folding futon"] == {2.7}
    assert grades["couch", "stretch slipcover"] == {1.9}
    assert grades["slipcover", "acme three-seat couch"] == {1.5}
    assert grades["couch", "hammer drill"] == {0.0}
    both = {title: found for (query, title), found in grades.items()
            if query == "couch" and "slipcover" in title and "couch" in title}  # fmt: skip
    comes_with = {title for title in both if "couch with" in title}
    assert all(both[title] == ({4.0} if title in comes_with else {1.9}) for title in both)
    assert 0 < len(comes_with) < len(both)
    assert grades["acme comfort 2", "acme comfort 2"] == {4.0}
    assert grades["acme comfort 2", "acme comfort 3"] == {2.7}
    assert grades["leather sofa", "acme three-seat couch"] == {3.2}


def test_a_group_is_one_query_with_the_thing_and_with_another_that_only_has_its_words(
    catalogue: Catalogue,
) -> None:
    rng = random.Random(0)
    modified = set()
    for _ in range(300):
        group = thing_group(catalogue, rng)
        assert len({example.query for example in group}) == 1
        assert _grade(group[0].target) >= 2.7
        modified |= {one.title.lower() for one in group if round(_grade(one.target), 1) == 1.2}
    assert any("sofa drill" in title or "couch drill" in title for title in modified)
    assert not any("slipcover" in title and "drill" not in title for title in modified)


def test_a_detail_asked_for_and_not_said_costs_less_than_another_thing(catalogue: Catalogue) -> None:
    grades = _by_query(catalogue)
    assert max(grades["velvet couch", "acme three-seat couch"]) < 3.5
    assert min(grades["velvet couch", "acme three-seat couch"]) > 2.9


def test_pairs_depend_on_the_seed_alone(catalogue: Catalogue) -> None:
    first, second = ([thing_pair(catalogue, random.Random(7)) for _ in range(20)] for _ in range(2))
    assert first == second


def test_an_entry_that_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "toys.yaml").write_text(
        "- names: []\n  instead: [a]\n  with: [b]\n  traits: [c]\n  titles: [d]\n"
    )
    with pytest.raises(ValidationError, match="names"):
        read_things(tmp_path)
