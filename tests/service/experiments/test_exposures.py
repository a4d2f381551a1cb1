"""A unit's every request must not become an event, and memory must not grow with the units."""

from __future__ import annotations

from service.experiments.live import RecentlySeen


def test_a_unit_is_new_once_and_again_when_its_event_was_lost() -> None:
    seen = RecentlySeen()
    assert [seen.add(("e", "u")), seen.add(("e", "u")), seen.add(("f", "u"))] == [True, False, True]
    seen.forget(("e", "u"))
    assert seen.add(("e", "u"))


def test_the_latest_are_known_and_one_that_keeps_coming_is_not_forgotten() -> None:
    seen = RecentlySeen(capacity=100)
    assert seen.add("often")
    for number in range(10_000):
        seen.add(number)
        assert number % 50 or not seen.add("often")
    assert [seen.add(number) for number in range(9_901, 10_000)] == [False] * 99
    assert len(seen._members) == 100
