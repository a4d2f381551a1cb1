"""API keys: who gets in, how often, and that a key is never shown."""

from __future__ import annotations

import pytest

from service.config.keys import KeyRing, parse_api_keys
from service.errors import RateLimited, Unauthorized


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_keys_are_read_with_their_role_and_rate() -> None:
    first, second, third = parse_api_keys("alpha, beta;role=admin;rate=50 ,c.~+/-_==;rate=0.5")
    assert (first.role, first.rate) == ("user", None)
    assert (second.role, second.rate) == ("admin", 50.0)
    assert (third.role, third.rate) == ("user", 0.5)


def test_a_rate_of_pairs_is_read_with_its_burst() -> None:
    first, second = parse_api_keys("alpha;pairs=2000;burst=10000,beta;pairs=0.5;rate=3")
    assert (first.rate, first.pairs, first.burst) == (None, 2000.0, 10000.0)
    assert (second.rate, second.pairs, second.burst) == (3.0, 0.5, None)
    assert parse_api_keys([first.entry, second.entry]) == (first, second)


@pytest.mark.parametrize("blank", ["", "  ", "\n"])
def test_keys_that_were_left_empty_do_not_open_the_service(blank: str) -> None:
    with pytest.raises(ValueError, match="not an empty text"):
        parse_api_keys(blank)


def test_an_empty_list_means_no_keys() -> None:
    assert parse_api_keys([]) == ()


def test_a_line_end_that_a_file_left_behind_is_not_part_of_the_key() -> None:
    assert parse_api_keys("alpha\n") == parse_api_keys("alpha")


def test_a_key_may_be_written_as_its_digest_and_the_digest_is_no_key() -> None:
    """So that a config file may be shown: printf %s alpha | sha256sum."""
    digest = "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8"
    keys = parse_api_keys(["alpha;rate=0.5", "beta;role=admin"])
    assert keys[0].entry == f"sha256:{digest};role=user;rate=0.5"
    assert parse_api_keys([key.entry for key in keys]) == keys
    ring = KeyRing(parse_api_keys(f"sha256:{digest}"))
    assert ring.authenticate(b"Bearer alpha")
    for wrong in (digest, f"sha256:{digest}"):
        with pytest.raises(Unauthorized):
            ring.authenticate(f"Bearer {wrong}".encode())


@pytest.mark.parametrize(
    "text",
    [
        "s3cr3t,",
        ",",
        "s3cr3t;role=root",
        "s3cr3t;rate=0",
        "s3cr3t;rate=-1",
        "s3cr3t;rate=nan",
        "s3cr3t;rate=fast",
        "s3cr3t;rate",
        "s3cr3t;pairs=0",
        "s3cr3t;pairs=inf",
        "s3cr3t;pairs=9;burst=0.5",
        "s3cr3t;burst=9",
        "s3cr3t;colour=red",
        "s3cr3t;rate=1;rate=2",
        "s3cr3t,other,s3cr3t",
        "s3cr3t key",
        ";rate=1",
        "schlüssel",
        "sha256:s3cr3t",
        "sha256:",
    ],
)
def test_a_wrong_entry_is_refused_without_repeating_the_key(text: str) -> None:
    with pytest.raises(ValueError, match=r"^entry \d+: ") as caught:
        parse_api_keys(text)
    assert "s3cr3t" not in str(caught.value)


def test_a_key_is_in_no_repr() -> None:
    (key,) = parse_api_keys("s3cr3t;rate=5")
    assert "s3cr3t" not in repr(key)
    assert key.digest.hex() not in repr(key)
    assert b"s3cr3t" not in key.digest


RING = KeyRing(parse_api_keys("alpha,beta;role=admin"))


@pytest.mark.parametrize("header", [b"Bearer beta", b"bearer beta", b"BEARER   beta "])
def test_the_right_key_gets_in(header: bytes) -> None:
    assert RING.authenticate(header).role == "admin"


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"beta",
        b"Bearer",
        b"Bearer ",
        b"Bearer gamma",
        b"Basic beta",
        b"Bearer beta x",
        b"Bearer \xff",
    ],
)
def test_anything_else_does_not(header: bytes | None) -> None:
    with pytest.raises(Unauthorized):
        RING.authenticate(header)


def test_a_rate_lets_a_burst_of_one_second_through_and_then_the_rate() -> None:
    clock = Clock()
    keys = parse_api_keys("alpha;rate=5")
    ring = KeyRing(keys, clock)
    for _ in range(5):
        ring.spend(keys[0])
    with pytest.raises(RateLimited) as caught:
        ring.spend(keys[0])
    assert caught.value.retry_after == pytest.approx(0.2)
    clock.now += 0.2001
    ring.spend(keys[0])
    with pytest.raises(RateLimited):
        ring.spend(keys[0])
    clock.now += 3600  # an idle hour saves up no more than a second's worth
    for _ in range(5):
        ring.spend(keys[0])
    with pytest.raises(RateLimited):
        ring.spend(keys[0])


def test_a_rate_below_one_still_lets_one_through() -> None:
    clock = Clock()
    keys = parse_api_keys("alpha;rate=0.5")
    ring = KeyRing(keys, clock)
    ring.spend(keys[0])
    with pytest.raises(RateLimited) as caught:
        ring.spend(keys[0])
    assert caught.value.retry_after == pytest.approx(2.0)


def test_keys_have_rates_of_their_own() -> None:
    limited, free = keys = parse_api_keys("alpha;rate=1,beta")
    ring = KeyRing(keys, Clock())
    ring.spend(limited)
    for _ in range(1000):
        ring.spend(free)
    with pytest.raises(RateLimited):
        ring.spend(limited)


def test_a_rate_of_pairs_lets_a_burst_through_and_then_the_rate() -> None:
    clock = Clock()
    (key,) = keys = parse_api_keys("alpha;pairs=10;burst=100")
    ring = KeyRing(keys, clock)
    ring.spend_pairs(key, 60)
    ring.spend_pairs(key, 40)
    with pytest.raises(RateLimited) as caught:
        ring.spend_pairs(key, 30)
    assert caught.value.retry_after == pytest.approx(3.0)
    clock.now += 3.001
    ring.spend_pairs(key, 30)
    for _ in range(1000):
        ring.spend(key)  # requests have no limit


def test_a_request_larger_than_the_burst_goes_through_and_is_paid_off() -> None:
    clock = Clock()
    (key,) = keys = parse_api_keys("alpha;pairs=10;burst=20")
    ring = KeyRing(keys, clock)
    ring.spend_pairs(key, 1)
    with pytest.raises(RateLimited) as caught:  # only from a full bucket
        ring.spend_pairs(key, 1000)
    assert caught.value.retry_after == pytest.approx(0.1)
    clock.now += 0.101
    ring.spend_pairs(key, 1000)
    with pytest.raises(RateLimited) as caught:
        ring.spend_pairs(key, 1)
    assert caught.value.retry_after == pytest.approx(98.1)
    ring.correct_pairs(key, 990)  # given back
    ring.spend_pairs(key, 10)
    ring.correct_pairs(key, -5)  # owed
    with pytest.raises(RateLimited) as caught:
        ring.spend_pairs(key, 10)
    assert caught.value.retry_after == pytest.approx(1.5)
