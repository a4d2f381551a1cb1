"""What goes wrong in models/: the root of the error tree that service/errors.py maps to statuses.

`str(error)` is one sentence that says what is wrong and what would be right.
"""

from __future__ import annotations


class ModelError(Exception):
    """Any error that models/ raises on purpose."""


class InvalidMask(ModelError, ValueError):
    """A head mask that is not in the grammar, or does not fit the model; a ValueError, too."""


class UnsupportedCheckpoint(ModelError):
    """A checkpoint or tokenizer that cannot be loaded as it was trained."""
