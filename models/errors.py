"""The errors of models/: the root of the tree that service/errors.py maps to statuses.

`str(error)` is one sentence that says what is wrong and what would be right.
"""

from __future__ import annotations


class ModelError(Exception):
    """Any error that models/ raises on purpose."""


class InvalidMask(ModelError, ValueError):
    """A head mask that the grammar does not know or that does not fit the model. It is a ValueError too."""


class UnsupportedCheckpoint(ModelError):
    """A checkpoint or tokenizer that cannot be loaded as it was trained."""
