"""A BERT classifier whose heads were written by hand: what each one attends to is known, and what it is for.

The residual stream is a set of orthogonal features (word, word family, position, segment, flags) in a rotated
basis whose directions all sum to 0, so that LayerNorm only scales it. The feed-forward parts are 0.

head 0.0  looks for the equal word in the other segment, and writes down whether it found one   (term match)
head 0.1  looks at the token before   (previous word)
head 1.0  takes what 0.0 wrote from all words of the query into every token   (no role of ours)
head 1.2  looks at the token after   (next word)
head 2.1  looks at the other pieces of its own word   (segmentation)
head 3.3  looks at [SEP]   (special)

All others spread their attention evenly and write nothing. The grade is how many of a query's four words the
title holds: intact, the model knows it; without 0.0 or 1.0 it cannot.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from headroom import Classifier
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.shapes import expected_shapes, layer_prefix
from headroom.models.quality.labelled import LabelledPair
from headroom.models.study.pairs import Judged
from headroom.models.study.runner import Runner
from headroom.models.study.study import FULL, Study
from tests.checkpoints import write_vocabulary

PLANTED = {
    "term_match": (0, 0),
    "previous_word": (0, 1),
    "next_word": (1, 2),
    "segmentation": (2, 1),
    "special": (3, 3),
}
NEEDED = ((0, 0), (1, 0))
"""The heads without which the grades are lost."""

LAYERS, HEADS, SIZE, POSITIONS = 4, 6, 32, 48
WIDTH = HEADS * SIZE
WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lnr"]
_FIRSTS, _SECONDS = (
    [f"{mark}{a}{b}" for a in pair for b in "aeiou"] for mark, pair in (("", "mp"), ("##", "st"))
)
SPLIT = list(zip(_FIRSTS, _SECONDS, strict=True))
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
VOCABULARY += [*WORDS, *(piece for pair in SPLIT for piece in pair)]

_BLOCKS = {
    "word": 30,
    "family": 16,
    "position": 32,
    "whole": 1,
    "segment": 1,
    "cls": 1,
    "sep": 1,
    "found": 1,
    "share": 1,
}
_NORM = float(np.sqrt(3.25))  # of the features of any token: three unit blocks and the segment's ±½


def write_planted(directory: Path, *, seed: int = 0, unknown_words: int = 0) -> Path:
    """Write the checkpoint. seed: of the random features; the roles do not depend on it. unknown_words: how
    many of WORDS it does not know again, which costs quality."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "bert", "vocab_size": len(VOCABULARY), "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "intermediate_size": 8, "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2, "id2label": {str(grade): f"grade {grade}" for grade in range(5)},
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_vocabulary(directory, VOCABULARY)
    shapes = dict(expected_shapes(read_config(directory)))
    tensors = {name: np.zeros(shape) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        if name.endswith("LayerNorm.weight"):
            tensor[:] = 1
    writer = _Writer(tensors, np.random.default_rng(seed))
    writer.write()
    writer.forget(WORDS[:unknown_words])
    save_file(
        {name: torch.tensor(tensor, dtype=torch.float32) for name, tensor in tensors.items()},
        directory / "model.safetensors",
    )
    return directory


def planted_pairs(queries: int, titles: int, *, seed: int = 0) -> list[LabelledPair]:
    """Queries of four words, each with titles that hold 0 to 4 of them among other, also split, words."""
    rng = np.random.default_rng(seed)
    pairs, seen = [], set()
    while len(pairs) < queries * titles:
        words = rng.permutation(WORDS)
        query = " ".join(words[:4])
        if query in seen:
            continue
        seen.add(query)
        for _ in range(titles):
            grade = int(rng.integers(0, 5))
            split = ["".join(SPLIT[i]).replace("##", "") for i in rng.choice(len(SPLIT), 2, replace=False)]
            others = [*rng.choice(words[4:], 7 - grade, replace=False), *split]
            title = rng.permutation([*rng.permutation(words[:4])[:grade], *others])
            pairs.append(LabelledPair(query, " ".join(title), grade))
    return pairs


def planted_study(
    directory: Path, *, queries: int = 8, titles: int = 6, holdout: bool = True, testable: bool = False
) -> Study:
    """A study of the planted model (written to `directory`) on planted pairs, float32 on the CPU.

    testable: hold out 250 queries of two titles, of which more than 183 differ in grade.
    """
    classifier = Classifier.load(write_planted(directory / "model"), "cpu", "float32")
    data = Judged(planted_pairs(queries, titles), "planted")
    others = planted_pairs(250, 2, seed=1) if testable else planted_pairs(queries, titles, seed=1)
    held_out = Judged(others, "held out") if holdout else None
    return Study(
        classifier,
        data,
        Runner(classifier),
        directory / "out",
        held_out,
        effort=replace(FULL, resamples=300),
    )


class _Writer:
    def __init__(self, tensors: dict[str, np.ndarray], rng: np.random.Generator) -> None:
        self.tensors, self.rng = tensors, rng
        ones = np.ones((WIDTH, 1)) / np.sqrt(WIDTH)
        frame, _ = np.linalg.qr(np.hstack([ones, rng.standard_normal((WIDTH, WIDTH - 1))]))
        starts = np.cumsum([1, *_BLOCKS.values()])
        self.basis = {
            name: frame[:, start : start + size]
            for (name, size), start in zip(_BLOCKS.items(), starts, strict=False)
        }
        self.scale = np.sqrt(WIDTH) / _NORM  # LayerNorm multiplies the features by this

    def write(self) -> None:
        self.embeddings()
        word, position, family = self.basis["word"], self.basis["position"], self.basis["family"]
        segment, found = self.basis["segment"], self.basis["found"]
        self.attend((0, 0), [(20, word, word), (-4, segment, segment)])
        self.carry((0, 0), segment, found)
        self.attend((0, 1), [(30, position @ self.turn(-1), position)])
        self.attend((1, 2), [(30, position @ self.turn(+1), position)])
        self.attend((2, 1), [(15, family, family)])
        self.prefer((3, 3), [(10, self.basis["sep"])])
        self.prefer((1, 0), [(-40, segment), (-40, self.basis["cls"]), (-40, self.basis["sep"])])
        self.carry((1, 0), found, self.basis["share"])
        self.classify()

    def forget(self, words: list[str]) -> None:
        """Take out of words what tells them apart."""
        embeddings = self.tensors["bert.embeddings.word_embeddings.weight"]
        for word in words:
            row = embeddings[VOCABULARY.index(word)]
            row -= self.basis["word"] @ (self.basis["word"].T @ row)

    def attend(self, head: tuple[int, int], terms: list[tuple[float, np.ndarray, np.ndarray]]) -> None:
        """The score of token j for token i is Σ over terms of strength · ⟨a·x_i, b·x_j⟩, x the features."""
        row = head[1] * SIZE
        for strength, a, b in terms:
            rows = slice(row, row + a.shape[1])
            self.weight(head[0], "self.query")[rows] = a.T * strength * np.sqrt(SIZE) / self.scale
            self.weight(head[0], "self.key")[rows] = b.T / self.scale
            row = rows.stop

    def prefer(self, head: tuple[int, int], terms: list[tuple[float, np.ndarray]]) -> None:
        """The score of token j is the sum over terms of strength · b·x_j, whoever looks."""
        row = head[1] * SIZE
        for place, (strength, b) in enumerate(terms):
            self.weight(head[0], "self.query", "bias")[row + place] = strength * np.sqrt(SIZE)
            self.weight(head[0], "self.key")[row + place] = b[:, 0] / self.scale

    def carry(self, head: tuple[int, int], source: np.ndarray, target: np.ndarray) -> None:
        """Adds feature `source` of what the head attends to to feature `target` of the token that looks."""
        row = head[1] * SIZE
        self.weight(head[0], "self.value")[row] = source[:, 0] / self.scale
        self.weight(head[0], "output.dense")[:, row] = target[:, 0] * self.scale

    def classify(self) -> None:
        """Thresholds on the share of the query's words found: −½ where none was, about +⅜ for all."""
        self.tensors["bert.pooler.dense.weight"][0] = self.basis["share"][:, 0] / self.scale
        borders = np.tanh(-0.5 + 0.88 / 4 * (np.arange(4) + 0.5))
        steepness = 60.0
        self.tensors["classifier.weight"][:, 0] = steepness * np.arange(5)
        self.tensors["classifier.bias"][:] = -steepness * np.concatenate([[0], np.cumsum(borders)])

    def weight(self, layer: int, name: str, part: str = "weight") -> np.ndarray:
        return self.tensors[f"{layer_prefix(layer)}attention.{name}.{part}"]

    def embeddings(self) -> None:
        prefix = "bert.embeddings."
        words = self.tensors[f"{prefix}word_embeddings.weight"]
        families: dict[str, np.ndarray] = {}
        for first, second in SPLIT:
            families[first] = families[second] = families.get(first, self.unit(_BLOCKS["family"]))
        for place, token in enumerate(VOCABULARY):
            if token in ("[CLS]", "[SEP]"):
                words[place] = np.sqrt(2) * self.basis[token.strip("[]").lower()][:, 0]
                continue
            words[place] = self.basis["word"] @ self.unit(_BLOCKS["word"])
            whole = token not in families
            words[place] += self.basis["whole"][:, 0] if whole else self.basis["family"] @ families[token]
        angles = np.arange(POSITIONS)[:, None] * self.frequencies
        waves = np.stack([np.cos(angles), np.sin(angles)], -1).reshape(POSITIONS, -1) / np.sqrt(
            angles.shape[1]
        )
        self.tensors[f"{prefix}position_embeddings.weight"][:] = waves @ self.basis["position"].T
        self.tensors[f"{prefix}token_type_embeddings.weight"][:] = (
            np.array([[-0.5], [0.5]]) @ self.basis["segment"].T
        )

    @property
    def frequencies(self) -> np.ndarray:
        return np.pi * np.linspace(0.02, 0.95, _BLOCKS["position"] // 2)

    def turn(self, steps: int) -> np.ndarray:
        """For `position @ turn`: turns the waves of position i into those of i + steps."""
        matrix = np.zeros((_BLOCKS["position"],) * 2)
        for k, w in enumerate(self.frequencies):
            c, s = np.cos(w * steps), np.sin(w * steps)
            matrix[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = [[c, -s], [s, c]]
        return matrix.T

    def unit(self, size: int) -> np.ndarray:
        v = self.rng.standard_normal(size)
        return v / np.linalg.norm(v)
