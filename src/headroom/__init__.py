"""BERT classifiers whose attention heads are run-time switches, and the server and studies around them.

>>> from headroom import Classifier
>>> clf = Classifier.load()
>>> clf.score("angle bracket", ["Simpson 12-Gauge Angle", "wood deck screws"], head_mask="@pruned20")[0].label
'exact'
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headroom.models.attention_maps import Attention
from headroom.models.errors import InvalidMask, ModelError, UnsupportedCheckpoint
from headroom.models.masks.head_mask import HeadMask
from headroom.models.scores import PairScore, Scores

if TYPE_CHECKING:
    from headroom.models.api import studies as study
    from headroom.models.api.calibrated import Calibrated, calibrate
    from headroom.models.api.evaluation import Evaluated, evaluate
    from headroom.models.api.quantized import Quantized, quantize
    from headroom.models.api.smaller import Pruned, prune
    from headroom.models.api.studies import StudyResult
    from headroom.models.api.taught import Taught, distil
    from headroom.models.attention import MultiHeadAttention
    from headroom.models.classifier import Classifier

__all__ = [
    "Attention",
    "Calibrated",
    "Classifier",
    "Evaluated",
    "HeadMask",
    "InvalidMask",
    "ModelError",
    "MultiHeadAttention",
    "PairScore",
    "Pruned",
    "Quantized",
    "Scores",
    "StudyResult",
    "Taught",
    "UnsupportedCheckpoint",
    "calibrate",
    "distil",
    "evaluate",
    "prune",
    "quantize",
    "study",
]

OPENMP_SPINS = 10_000
"""GNU's OpenMP reads this number when torch is imported. Threads that wait for each other then sleep after
half a millisecond. By default they spin for longer, and where other programs use the cores, they hold up the
very thread that they wait for (benchmarks/results/amx.md, waiting)."""

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", str(OPENMP_SPINS))

_LAZY = {
    "Calibrated": "headroom.models.api.calibrated",
    "Classifier": "headroom.models.classifier",
    "Evaluated": "headroom.models.api.evaluation",
    "MultiHeadAttention": "headroom.models.attention",
    "Pruned": "headroom.models.api.smaller",
    "Quantized": "headroom.models.api.quantized",
    "StudyResult": "headroom.models.api.studies",
    "Taught": "headroom.models.api.taught",
    "calibrate": "headroom.models.api.calibrated",
    "distil": "headroom.models.api.taught",
    "evaluate": "headroom.models.api.evaluation",
    "prune": "headroom.models.api.smaller",
    "quantize": "headroom.models.api.quantized",
}
"""The modules of names that need torch or take long to import."""


def __getattr__(name: str) -> Any:
    """Import torch only when it is needed: masks, scores and errors work without it."""
    if name == "__version__":
        from headroom.version import version

        return version()
    if name == "study":
        return import_module("headroom.models.api.studies")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
