"""A unit's every request must not become an event, and memory must not grow with the units."""

from __future__ import annotations

from service.experiments.router import RecentlySeen


def test_a_unit_is_new_once() -> None:
    seen = RecentlySeen()
    assert [seen.add(("e", "u")), seen.add(("e", "u")), seen.add(("f", "u"))] == [True, False, True]


def test_the_latest_are_known_however_many_there_were() -> None:
    seen = RecentlySeen(capacity=100)
    for number in range(10_000):
        seen.add(number)
    assert [seen.add(number) for number in range(9_900, 10_000)] == [False] * 100
    assert len(seen._new) + len(seen._old) <= 200


def test_one_that_keeps_coming_is_not_forgotten() -> None:
    seen = RecentlySeen(capacity=10)
    assert seen.add("often")
    for number in range(1000):
        seen.add(number)
        if number % 5 == 0:
            assert not seen.add("often")


def test_a_unit_whose_event_was_lost_is_new_again() -> None:
    seen = RecentlySeen()
    seen.add("u")
    seen.forget("u")
    assert seen.add("u")
