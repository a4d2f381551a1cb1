"""A strict YAML parser for configs: no key twice, and no value that JSON has not.

YAML parsers keep the last of repeated keys, but these are nearly always a mistake. Ray Serve passes a config
on as JSON, so a date without quotes would become something else.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml.nodes import MappingNode, Node

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
    except RecursionError:
        raise InvalidYAML("nested too deeply", None) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        sentences = [getattr(error, "context", None), getattr(error, "problem", None)]
        problem = ", ".join(filter(None, sentences)) or str(error)
        if "'@'" in problem or "scanning an alias" in problem:  # as masks begin
            problem += "; put the value in quotes"
        raise InvalidYAML(" ".join(problem.split()), None if mark is None else mark.line + 1) from None


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with this module's rules."""

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Refuse an alias inside the node that it names: JSON cannot hold such a value."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            named = self.anchors.get(event.anchor)
            if named is not None and named.end_mark is None:  # its end was not yet read
                problem = f"*{event.anchor} stands inside what it names"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        """Refuse a key that stands twice."""
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in lines:
                raise _problem(key, f"the key {key.value!r} stands twice, first in line {lines[name]}")
            lines[name] = key.start_mark.line + 1
        return node

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """Refuse scalars that are not of the type they look like."""
        if node.tag == "tag:yaml.org,2002:timestamp":
            raise _problem(node, f'{node.value} is read as a date; put it in quotes: "{node.value}"')
        try:
            value = super().construct_object(node, deep)
            is_valid = not isinstance(value, int) or value in _INTEGERS
        except (ValueError, LookupError, OverflowError):
            is_valid = False
        if not is_valid:
            raise _problem(node, "not a valid value; put it in quotes if it is text")
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise _problem(node, "holds half a character (a surrogate); write the character itself")
        return value


def _problem(at: Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)
