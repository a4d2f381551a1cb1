"""Virtual time: if it were wrong, requests would be served in an order that is not fair."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.sharing import ProcessorSharing, Share

steps = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(1, 50)),
        st.tuples(st.just("advance"), st.integers(1, 120)),
        st.tuples(st.just("withdraw"), st.integers(0, 1000)),
    ),
    max_size=60,
)


def shared(left: dict[int, float], tokens: float) -> None:
    """Give so many tokens out in equal parts, the slow way."""
    while tokens > 1e-9 and left:
        least = min(left.values())
        part = min(tokens / len(left), least)
        tokens -= part * len(left)
        for name in list(left):
            left[name] -= part
            if left[name] <= 1e-9:
                del left[name]


@given(steps)
def test_requests_end_when_equal_sharing_would_end_them(steps: list[tuple[str, int]]) -> None:
    sharing = ProcessorSharing()
    shares: list[Share] = []
    sizes: list[float] = []
    left: dict[int, float] = {}
    for what, number in steps:
        if what == "enter":
            left[len(shares)] = number
            sizes.append(number)
            shares.append(sharing.enter(number))
        elif what == "advance":
            shared(left, number)
            sharing.advance(number)
        elif shares:
            name = number % len(shares)
            served = int(sizes[name]) * (number % 5) // 4  # in truth, before it was withdrawn
            if name in left:
                left[name] = served - (sizes[name] - left[name])
                sizes[name] = served
                if left[name] <= 1e-9:
                    del left[name]
            sharing.shorten(shares[name], served)
        assert sharing.active == len(left)
        assert {name for name, share in enumerate(shares) if not share.done} == left.keys()
        for name, tokens in left.items():
            assert shares[name].finish - sharing.time == pytest.approx(tokens, abs=1e-6)


def test_requests_that_leave_take_up_no_memory() -> None:
    sharing = ProcessorSharing()
    sharing.enter(10)
    for _ in range(10_000):
        sharing.shorten(sharing.enter(100), 0)
    assert sharing.active == 1
    assert len(sharing._heap) <= 20


def test_clearing_ends_every_share() -> None:
    sharing = ProcessorSharing()
    share = sharing.enter(10)
    sharing.clear()
    assert share.done
    assert sharing.active == 0
    assert sharing.enter(5).finish == sharing.time + 5
