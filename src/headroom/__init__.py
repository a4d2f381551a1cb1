"""BERT classifiers whose attention heads are run-time switches, and the server and studies around them.

>>> from headroom import Classifier
>>> clf = Classifier.load()
>>> clf.score("angle bracket", ["Simpson 12-Gauge Angle", "wood deck screws"], head_mask="@pruned20")[0].label
'exact'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headroom.models.attention import Attention
from headroom.models.errors import InvalidMask, ModelError, UnsupportedCheckpoint
from headroom.models.masks.head_mask import HeadMask
from headroom.models.scores import PairScore, Scores

if TYPE_CHECKING:
    from headroom.models.classifier import Classifier

__all__ = [
    "Attention",
    "Classifier",
    "HeadMask",
    "InvalidMask",
    "ModelError",
    "PairScore",
    "Scores",
    "UnsupportedCheckpoint",
]

_LAZY = {"Classifier": "headroom.models.classifier"}
"""The modules of names that need torch or take long to import."""


def __getattr__(name: str) -> Any:
    """Import torch only when a classifier is asked for: masks and errors work without it."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_LAZY]
