"""service.config.strict_yaml: what would surprise the author of a config is refused, with its line."""

from __future__ import annotations

import pytest

from service.config.strict_yaml import InvalidYAML, parse


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: 1\nsalt: 2026-11-31", 2, 'read as a date; put it in quotes: "2026-11-31"'),
        ("salt: 2026-11-30", 1, "read as a date"),
        ("a: " + "7" * 5000, 1, "not a valid value"),
        ("a: " + "7" * 30, 1, "not a valid value"),
        ("[" * 5000, None, "nested too deeply"),
        ("a: 1\nb: 2\na: 3", 3, "the key 'a' stands twice, first in line 1"),
        ("a:\n  - {b: 1, b: 1}", 2, "the key 'b' stands twice"),
        ("a: !!bool maybe", 1, "not a valid value"),
        ("a: !!python/object/apply:os.system [ls]", 1, "could not determine a constructor"),
        ('a: "\\ud800"', 1, "half a character"),
        ("a: 1\n---\nb: 2", 2, "a single document in the stream, but found another"),
        ("a: [", 1, "expected the node content"),
    ],
)
def test_the_surprising_is_refused_in_one_line(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(InvalidYAML, match=reason) as refused:
        parse(text)
    assert refused.value.line == line
    assert "\n" not in str(refused.value)


def test_what_authors_mean_is_read() -> None:
    text = 'base: &base {k: 1, l: [a, "2026-11-31", 0.5, null, yes]}\nmore: {<<: *base, k: 3}\nagain: *base'
    base = {"k": 1, "l": ["a", "2026-11-31", 0.5, None, True]}
    assert parse(text) == {"base": base, "more": base | {"k": 3}, "again": base}
    assert parse("") is None


@pytest.mark.parametrize("text", ["masks: &a {b: *a}", "masks: &a [1, [*a]]"])
def test_an_alias_inside_what_it_names_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(InvalidYAML, match=r"\*a stands inside what it names") as refused:
        parse(f"x: 1\n{text}")
    assert refused.value.line == 2


def test_an_alias_of_a_whole_value_is_read() -> None:
    assert parse("a: &x {b: 1}\nc: *x") == {"a": {"b": 1}, "c": {"b": 1}}
