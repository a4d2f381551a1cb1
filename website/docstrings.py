"""Griffe's extension: docstrings as Markdown."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^>>> .*\n(?:^(?!>>> |\s*$).*\n?)*)+", re.MULTILINE)
_PART = re.compile(r"(?<=\n)(?=[a-z_]+(?:, [a-z_]+)*: |Raises |Returns )")


class Docstrings(griffe.Extension):
    """Puts examples between fences, since Markdown reads `>>>` as a quotation, and a blank line before each
    line that begins with an argument's name, Returns or Raises."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of what was read, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Return a docstring of this project as Markdown."""
    prose, *examples = re.split(r"(?m)(?=^>>> )", f"{text}\n", maxsplit=1)
    prose = _PART.sub("\n", prose)
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", prose + "".join(examples))
