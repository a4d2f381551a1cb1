"""Checkpoints whose probabilities are wrong in a known way, and pairs judged by the right ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file

from headroom import Classifier
from headroom.models.arrays import Floats
from tests.checkpoints import WORDS, load, write_checkpoint
from tests.families import edit_config as edit_config

Row = tuple[str, str, int]
TITLES = 8
"""Titles of a query."""


def spoil(checkpoint: Path, *, scale: float = 1.0, raised: int | None = None, prefix: str = "") -> None:
    """Multiply a checkpoint's logits, and then add 2 to the one of a label."""
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    for part in ("weight", "bias"):
        tensors[f"{prefix}classifier.{part}"] *= scale
    if raised is not None:
        tensors[f"{prefix}classifier.bias"][raised] += 2
    save_file(tensors, file, {"format": "pt"})


def write_fair(directory: Path, labels: int, **overrides: object) -> Path:
    """Write a small checkpoint whose logits differ enough for its probabilities to mean something."""
    write_checkpoint(directory, seed=5, num_labels=labels, **overrides)
    spread = load(directory).score(pairs_of(60, 3)).logits.std()
    spoil(directory, scale=1.5 / float(spread))
    if labels == 1:  # centred, so that both classes are frequent
        middle = float(load(directory).score(pairs_of(60, 3)).logits.mean())
        tensors = load_file(directory / "model.safetensors")
        tensors["classifier.bias"] -= middle
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


def pairs_of(queries: int, seed: int) -> list[tuple[str, str]]:
    """Return TITLES pairs of each query."""
    rng = np.random.default_rng(seed)
    texts = [f"{' '.join(rng.choice(WORDS, 2))} {seed}{number}" for number in range(queries)]
    return [
        (query, " ".join(rng.choice(WORDS, rng.integers(2, 9)))) for query in texts for _ in range(TITLES)
    ]


def judged(fair: Classifier, queries: int, seed: int) -> list[Row]:
    """Return pairs with grades that are drawn from a model's probabilities."""
    rng = np.random.default_rng(seed)
    pairs = pairs_of(queries, seed)
    scores = fair.score(pairs)
    if fair.config.is_graded:
        cumulative = scores.probabilities.cumsum(1)
        grades = (rng.random((len(pairs), 1)) > cumulative).sum(1).clip(max=cumulative.shape[1] - 1)
    else:
        grades = (rng.random(len(pairs)) < scores.expected_grade).astype(np.int64)
    return [(query, title, int(grade)) for (query, title), grade in zip(pairs, grades, strict=True)]


def calibration_error(probabilities: Floats, truth: Sequence[int]) -> float:
    """Return the class-wise calibration error by its definition; of (n,) probabilities that of class 1."""
    columns = {1: probabilities} if probabilities.ndim == 1 else dict(enumerate(probabilities.T))
    errors = []
    for label, column in columns.items():
        error = 0.0
        for low in np.arange(15) / 15:
            rows = (column >= low) & ((column < low + 1 / 15) | (low > 0.93))
            if rows.any():
                share = np.mean(np.asarray(truth)[rows] == label)
                error += rows.mean() * abs(column[rows].mean() - share)
        errors.append(error)
    return float(np.mean(errors))
