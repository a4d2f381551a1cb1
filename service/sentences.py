"""Our sentences about wrong values, by the type of pydantic's error; other types keep pydantic's sentence."""

from collections.abc import Sequence

_EVERYWHERE = {
    "extra_forbidden": "there is no such field",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
}
IN_JSON = _EVERYWHERE | {
    "missing": "is missing",
    "string_type": "should be a string",
    "list_type": "should be a list",
    "tuple_type": "should be a list of two strings",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "int_type": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
    "int_parsing_size": "is too large a number",
    "dict_type": "should be an object",
    "model_type": "should be an object",
    "none_required": "is not supported",
    "finite_number": "should be a finite number",
}
"""About requests: JSON's words."""
IN_YAML = _EVERYWHERE | {
    "tuple_type": "should be a list",
    "dict_type": "should be a mapping (name: value)",
    "model_type": "should be a mapping (name: value)",
}
"""About the config file: YAML's words. Pydantic's say more of text, lists and numbers, which the command line
and the environment give, too."""


def shortened(text: object, length: int = 64) -> str:
    """Return a caller's own words, short enough to repeat in a message."""
    written = str(text)
    return written if len(written) <= length else f"{written[:length]}…"


def place_of(location: Sequence[str | int]) -> str:
    """Return `("titles", 3)`, a location of pydantic's, as a person would write it: `titles[3]`."""
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{shortened(part)}" for part in location)
    return place.removeprefix(".")
