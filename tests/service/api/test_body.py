"""Strict JSON: what a sloppy parser would have let through or choked on."""

import contextlib
import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headroom.service.api.body import MAX_DEPTH, parse
from headroom.service.config.settings import Settings
from headroom.service.errors import InvalidJSON
from tests.service.api.test_api import app_with
from tests.service.asgi import client

PARTS = 50_000


def loads(body: bytes) -> Any:
    return parse(body, max_parts=PARTS)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b'{"a": 1} x', "column 10"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"a": 1e999}', "infinity"),
        (b'{"a": "\xed\xa0\x80"}', "UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "not valid JSON"),
        (b'\xef\xbb\xbf\xef\xbb\xbf{"a": 1}', "BOM"),
        (rb'{"a": "\ud800"}', "surrogate"),
        (b'{"query": "a", "query": "b"}', '"query" appears twice'),
        (rb'{"a": 1, "\u0061": 2}', '"a" appears twice'),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "32 levels"),
    ],
)
def test_what_is_not_strict_json_is_refused_with_the_reason(body: bytes, says: str) -> None:
    with pytest.raises(InvalidJSON) as caught:
        loads(body)
    assert says in caught.value.message
    assert len(caught.value.message) < 200


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_whatever_a_right_encoder_writes_is_read_back(value: object) -> None:
    for ascii_only in (True, False):
        try:
            body = json.dumps(value, ensure_ascii=ascii_only).encode()
        except UnicodeEncodeError:
            continue
        assert loads(body) == loads(b"\xef\xbb\xbf" + body) == value


@given(st.dictionaries(st.text(max_size=8), st.integers(0, 9), min_size=1), st.data())
def test_no_duplicate_key_is_ever_missed(members: dict[str, int], data: st.DataObject) -> None:
    pairs = [f"{json.dumps(key)}: {value}" for key, value in members.items()]
    again = data.draw(st.sampled_from(sorted(members)))
    position = data.draw(st.integers(0, len(pairs)))
    escaped = "".join(f"\\u{unit:04x}" for unit in _utf16_units(again))
    pairs.insert(position, f'"{escaped}" : 1')
    with pytest.raises(InvalidJSON, match="twice"):
        loads(("[{" + ",".join(pairs) + "}]").encode())


def _utf16_units(text: str) -> list[int]:
    raw = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 4_000_000,
        b"[" + b"[]," * 1_300_000 + b"[]]",
        b"{" + b",".join(b'"%d":1' % n for n in range(350_000)) + b',"7":1}',
        b'{"a":' + b"1" * 4_000_000 + b"}",
        b'{"a": "' + b"\\u0041" * 660_000,
        b'{"a":1}' + b" " * 4_000_000 + b":",
        b"[" * 60_000 + b'"' + rb"\"" * 1_900_000,
        b"[" + b'"a",' * 900_000 + b'"a"]',
    ],
    ids=lambda body: f"{body[:9]!r} {len(body)}",
)
def test_a_hostile_body_of_four_megabytes_costs_less_than_a_second(body: bytes) -> None:
    started = time.thread_time()
    with contextlib.suppress(InvalidJSON):
        loads(body)
    assert time.thread_time() - started < 1.0


def test_objects_may_have_the_same_keys_and_32_levels() -> None:
    assert loads(b'{"a": {"x": 1}, "b": {"x": 1}}') == {"a": {"x": 1}, "b": {"x": 1}}
    deep = b"[[], " + b"[" * (MAX_DEPTH - 1) + b"]" * MAX_DEPTH
    assert loads(deep) == json.loads(deep)


def test_signs_in_strings_are_not_counted_as_arrays_or_keys_whatever_is_escaped() -> None:
    texts = ['[{"', "\\", '\\"[', "[" * 60_000, '"' + "{" * 60_000, ":" * 60_000, '":' * 60_000]
    assert loads(json.dumps({"titles": texts}).encode()) == {"titles": texts}
    keys = {str(number): number for number in range(60_000)}
    for parts in ([[]] * 60_000, [{}] * 60_000, [keys]):
        with pytest.raises(InvalidJSON, match="more than 50000 arrays, objects and keys"):
            loads(json.dumps({"titles": texts + parts}).encode())


async def test_a_service_with_larger_requests_takes_more_parts() -> None:
    """A thousand documents of 51 fields were refused whatever the settings."""
    documents = [{f"field{n}": "text" for n in range(51)} | {"text": "a"}] * 1000
    body = orjson.dumps({"query": "a", "documents": documents, "model": "full"})
    async with client(app_with()) as session:
        response = await session.post("/v1/rerank", content=body)
    assert response.status_code == 200, response.text
    assert Settings().max_json_parts < Settings(max_pairs=30_000).max_json_parts
