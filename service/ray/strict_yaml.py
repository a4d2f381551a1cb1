"""A strict YAML parser for configs: values that JSON has too, and no key twice.

Ray Serve passes a config on as JSON, so dates, sets and binary values are refused. Repeated keys are refused
too: YAML parsers keep the last one, but they are nearly always a mistake.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

MAX_DEPTH = 64
MAX_VALUES = 1_000_000
"""Limit of one file's values after aliases are expanded; a few lines of aliases can mean billions."""

_INTEGERS = range(-(2**63), 2**64)  # the range that JSON parsers accept


class InvalidYAML(Exception):
    """The text is no config; the message says why. line: line number, counted from 1; None if unknown."""

    def __init__(self, problem: str, line: int | None) -> None:
        super().__init__(problem)
        self.line = line


def parse(text: str) -> Any:
    """Return the value of the one document in the text. Raises InvalidYAML."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        sentences = [getattr(error, "context", None), getattr(error, "problem", None)]
        problem = ", ".join(filter(None, sentences)) or str(error)
        if "'@'" in problem or "scanning an alias" in problem:  # as masks begin
            problem += "; put the value in quotes"
        raise InvalidYAML(" ".join(problem.split()), None if mark is None else mark.line + 1) from None


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with this module's rules."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0
        self._open: list[str] = []  # anchors of the nodes around the current one
        self._values_of: dict[str, int] = {}  # by anchor

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Refuse nodes that are nested too deeply, too many values, and an alias inside what it names."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor: str | None = event.anchor
        if isinstance(event, yaml.AliasEvent):
            if anchor in self._open:
                raise _problem(event, f"*{anchor} stands inside what it names")
            self._count(self._values_of.get(str(anchor), 0), event)
            return super().compose_node(parent, index)
        before = self._values
        self._count(1, event)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _problem(event, f"nested more than {MAX_DEPTH} levels deep")
        if anchor is not None:
            self._open.append(anchor)
        node = super().compose_node(parent, index)
        if anchor is not None:
            self._open.pop()
            self._values_of[anchor] = self._values - before
        self._depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        """Refuse a key that stands twice."""
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                continue
            name = (key.tag, key.value)
            if name in lines:
                raise _problem(key, f"the key {key.value!r} stands twice, first in line {lines[name]}")
            lines[name] = key.start_mark.line + 1
        return node

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """Refuse scalars that are not of the type they look like."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, OverflowError):
            raise _problem(node, f"not a valid {_kind(node)}; put it in quotes if it is text") from None
        if isinstance(value, int) and value not in _INTEGERS:
            raise _problem(node, f"not a valid {_kind(node)}; put it in quotes if it is text")
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise _problem(node, "holds half a character (a surrogate); write the character itself")
        return value

    def _count(self, values: int, at: Any) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise _problem(at, f"more than {MAX_VALUES:,} values, with aliases expanded")


def _refuse_date(_: _Loader, node: Node) -> None:
    raise _problem(node, f'{node.value} is read as a date; put it in quotes: "{node.value}"')


def _refuse_kind(_: _Loader, node: Node) -> None:
    raise _problem(node, f"a value of the kind {_kind(node)} has no place in a config")


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _refuse_date)
for _tag in ("binary", "omap", "pairs", "set"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _refuse_kind)


def _kind(node: Node) -> str:
    kind = str(node.tag).rpartition(":")[2]
    return {"int": "whole number (64 bits)", "float": "number"}.get(kind, kind)


def _problem(at: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)
