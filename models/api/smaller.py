"""Pruned checkpoints from Python: `headroom.prune`."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from headroom.models.api.data import DIRECTORY, path_of
from headroom.models.checkpoint.files import bytes_of_weights, check_empty, new_directory
from headroom.models.checkpoint.model_config import ModelConfig
from headroom.models.errors import ModelError
from headroom.models.frame import frame
from headroom.models.masks.head_mask import HeadMask

if TYPE_CHECKING:
    import pandas as pd

    from headroom.models.classifier import Classifier, MaskForm


@dataclass(frozen=True)
class Pruned:
    """A checkpoint without what a mask switches off.

    path: its directory. mask: what was removed. sizes: the numbers of heads, units and layers and the bytes
    of the weights, before and after. transformers: why transformers does not load it; None if it does.
    """

    path: Path
    mask: HeadMask
    sizes: dict[str, tuple[int, int]]
    transformers: str | None

    def load(self, device: str = "auto", dtype: str = "auto") -> Classifier:
        """Return its classifier, as `Classifier.load` does."""
        from headroom.models.classifier import Classifier

        return Classifier.load(self.path, device, dtype)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame, a row each for heads, units, layers and bytes.

        Columns: part, before, after. Raises ModuleNotFoundError without pandas.
        """
        before = [old for old, _ in self.sizes.values()]
        after = [new for _, new in self.sizes.values()]
        return frame({"part": list(self.sizes), "before": before, "after": after})

    def __str__(self) -> str:
        sizes = dict(self.sizes)
        old, new = sizes.pop("bytes")
        parts = [f"{n:,} of {o:,} {name}" for name, (o, n) in sizes.items() if name == "heads" or n != o]
        text = f"{self.path}: {', '.join(parts)}, {new / 1e6:.1f} MB of {old / 1e6:.1f} MB"
        if self.transformers is None:
            return text
        return f"{text}\nheadroom loads it; transformers does not: {self.transformers}"

    __repr__ = __str__


def prune(clf: Classifier, mask: MaskForm, out: str | PathLike[str]) -> Pruned:
    """Write a checkpoint without the heads, units and layers that a mask switches off.

    It scores as the classifier does with the mask. Its layers are numbered from 0. out: an empty or new
    directory.
    Raises InvalidMask for a wrong mask; ModelError if no head would be left, or `out` is not empty.

    >>> smaller = prune(clf, "@pruned20", directory / "smaller")
    >>> smaller.sizes["heads"]
    (144, 115)
    """
    if clf.directory is None:
        raise ModelError("prune needs a classifier that was loaded from a directory or the hub")
    weights = clf.named_mask("mask", mask)
    clf.config.check_head_left(weights)
    return pruned(clf.directory, clf.config, weights, path_of("out", out, DIRECTORY))


def pruned(source: Path, config: ModelConfig, mask: HeadMask, out: Path) -> Pruned:
    """Prune the checkpoint in a directory, which has this config. mask: it leaves a head."""
    check_empty(out)

    from headroom.models.compress.prune import prune, transformers_refusal  # imports torch

    with new_directory(out) as draft:
        smaller = prune(source, draft, mask, config)
    sizes = {
        "heads": (sum(map(len, config.kept_heads)), sum(map(len, smaller.kept_heads))),
        "units": (sum(config.widths), sum(smaller.widths)),
        "layers": (config.num_layers, smaller.num_layers),
        "bytes": (bytes_of_weights(source), bytes_of_weights(out)),
    }
    return Pruned(out, mask, sizes, transformers_refusal(smaller))
