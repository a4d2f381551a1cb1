"""BERT classifiers whose attention heads are run-time switches, and the server and studies around them.

>>> from headroom import Classifier, HeadMask
>>> clf = Classifier.load()
>>> mask = HeadMask.parse("6-11.*", layers=clf.num_layers, heads=clf.num_heads)
>>> clf.score([("angle bracket", "Simpson 12-Gauge Angle")], head_mask=mask).expected_grade
"""

from typing import TYPE_CHECKING, Any

from headroom.models.errors import InvalidMask, ModelError, UnsupportedCheckpoint
from headroom.models.masks.head_mask import HeadMask

if TYPE_CHECKING:
    from headroom.models.classifier import Classifier, Scores

__all__ = ["Classifier", "HeadMask", "InvalidMask", "ModelError", "Scores", "UnsupportedCheckpoint"]


def __getattr__(name: str) -> Any:
    """Import torch only when a classifier is asked for: masks and errors work without it."""
    if name == "__version__":
        from headroom.version import version

        return version()
    if name in ("Classifier", "Scores"):
        from headroom.models import classifier

        return getattr(classifier, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
