"""The errors of models/: the root of the tree that service/errors.py maps to statuses.

`str(error)` is one sentence that says what is wrong and what would be right.
"""

import json
import sys
from pathlib import Path


class ModelError(Exception):
    """Any error that models/ raises on purpose."""


class InvalidMask(ModelError, ValueError):
    """A head mask that the grammar does not know or that does not fit the model. It is a ValueError too."""


class UnsupportedCheckpoint(ModelError):
    """A checkpoint or tokenizer that cannot be loaded as it was trained."""


class TokenizerFailed(ModelError):
    """The tokenizers library failed on a text."""


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra of this project; on PyPI, `headroom` is another project."""
    root = Path(__file__).resolve().parents[1]
    if not (root / "constraints.txt").exists():  # installed from a wheel
        return f"pipx install --force 'headroom-….whl[{extra}]', with the wheel that you installed"
    return f"{sys.executable} -m pip install -c '{root}/constraints.txt' -e '{root}[{extra}]'"


def one_line(message: object) -> str:
    """Return an error or its text as one line; of an error without a text, its type."""
    return " ".join(str(message).split()) or type(message).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type's name if it has no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def reading_problem(file: Path | str, error: Exception) -> str:
    """Return in one sentence why a file cannot be read: "mask.json has no key `mask`".

    error: an OSError, a KeyError for a key that is missing, or the ValueError of wrong JSON or UTF-8.
    """
    match error:
        case FileNotFoundError():
            return f"{file} does not exist"
        case IsADirectoryError():
            return f"{file} is a directory"
        case OSError():
            return f"{file} cannot be read: {error.strerror or error}"
        case KeyError():
            return f"{file} has no key `{error.args[0]}`"
        case json.JSONDecodeError():
            return f"{file} is not valid JSON at line {error.lineno}, column {error.colno}"
        case UnicodeDecodeError():
            return f"{file} is not UTF-8 text"
    return f"{file} cannot be read: {error}"
