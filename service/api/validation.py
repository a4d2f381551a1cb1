"""Turns pydantic's list of errors into one sentence that names the field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from service.errors import InvalidRequest
from service.schemas.requests import shown

_SUBJECT = re.compile(r"^(Input|Value|String|List|Tuple|Dictionary) should ")
_SENTENCES = {
    "missing": "is missing",
    "extra_forbidden": "there is no such field",
    "string_type": "should be a string",
    "list_type": "should be a list",
    "tuple_type": "should be a list of two strings",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "int_type": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
    "int_parsing_size": "is too large a number",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "dict_type": "should be an object",
    "model_type": "should be an object",
    "finite_number": "should be a finite number",
}
_MAX_SENTENCE_CHARS = 200
_KEY = "[key]"
"""What pydantic puts at the end of an error's place if a key of a dict is wrong, and not its value."""


def explain(errors: Sequence[Any]) -> InvalidRequest:
    """Return an InvalidRequest for the first of pydantic's errors; its message does not repeat the input."""
    first = errors[0]
    path = first["loc"]
    if not path:
        return InvalidRequest("The body should be a JSON object.")
    sentence = _SENTENCES.get(first["type"]) or _SUBJECT.sub("should ", str(first["msg"]))
    sentence = sentence.partition(" after validation")[0]
    if path[-1] == _KEY and first["type"] != "extra_forbidden" and len(path) > 2:
        sentence = f"the name {shown(path[-2])!r} {sentence}"
        path = path[:-2]
    return InvalidRequest(shown(sentence, _MAX_SENTENCE_CHARS), param=field_path(path))


def field_path(path: Sequence[str | int]) -> str:
    """Return `("titles", 3)` as a person would write it: `titles[3]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{shown(part)}" if text else shown(part)
    return text
