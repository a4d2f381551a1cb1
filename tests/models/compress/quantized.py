"""Makes and loads int8 checkpoints, for the tests."""

from pathlib import Path

import numpy as np

from models import Classifier
from models.compress.quantize import quantize
from tests.checkpoints import WORDS


def random_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    rng = np.random.default_rng(seed)
    return [
        (" ".join(rng.choice(WORDS, rng.integers(1, 4))), " ".join(rng.choice(WORDS, rng.integers(2, 14))))
        for _ in range(count)
    ]


PAIRS = random_pairs(40, seed=1)


def make_int8(source: Path, target: Path) -> Path:
    tokenizer = Classifier.load(source, "cpu", "float32").tokenizer
    quantize(source, target, tokenizer.encode(random_pairs(150)))
    return target


def load(directory: Path, dtype: str = "float32", *, deterministic: bool = False) -> Classifier:
    return Classifier.load(directory, "cpu", dtype, deterministic=deterministic)
