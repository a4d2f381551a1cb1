"""Makes the smaller networks of a search in memory and evaluates them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from models.checkpoint.hub import locate
from models.checkpoint.tensors import read_tensors
from models.classifier import Classifier
from models.compress.cutting import cut
from models.compress.structure import Structure
from models.network import build
from models.quality.evaluation import Evaluation
from models.study.base import Judged
from models.study.inputs import spread_over_queries
from models.study.runner import Runner
from models.study.study import Study

SAMPLE = 256
"""Pairs on which candidates are compared with the intact model, taken from each query in turn."""


class Workshop:
    """The checkpoint's tensors and a sample of the search data."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.tensors = read_tensors(locate(study.model), study.classifier.config)
        rows = spread_over_queries(study.data.query_of, SAMPLE, study.seed)
        self.sample = _rows(study.data, rows)
        self._evaluated: dict[tuple[str, str], Evaluation] = {}
        self._divergences: dict[str, float] = {}
        self._intact = self._log_probabilities(study.classifier, "intact")

    def smaller(self, structure: Structure) -> Classifier:
        """Return the classifier of a structure, as `headroom prune` would write it."""
        clf = self.study.classifier
        tensors, config = cut(self.tensors, clf.config, structure)
        network = build(
            config, tensors, device=clf.network.device, dtype=clf.network.dtype,
            deterministic=clf.network.deterministic,
        )  # fmt: skip
        return Classifier(clf.name, config, clf.tokenizer, network, {})

    def evaluate(self, structure: Structure, data: Judged) -> Evaluation:
        """Return the quality of a structure's network on `data`; of one that was asked before, at once."""
        key = (name_of(structure), data.source)
        if key not in self._evaluated:
            self._evaluated[key] = self.evaluate_classifier(self.smaller(structure), data, key[0])
        self.study.progress.advance()
        return self._evaluated[key]

    def evaluate_classifier(self, classifier: Classifier, data: Judged, name: str) -> Evaluation:
        """Return the quality of a classifier on `data`. name: distinguishes it in the cache."""
        runner = self._runner(classifier, data, name)
        return runner.evaluation(runner.logits([classifier.all_heads.matrix])[0])

    def divergence(self, structure: Structure) -> float:
        """Return the mean Kullback–Leibler divergence of a structure's grades from the intact model's."""
        name = name_of(structure)
        if name not in self._divergences:
            after = self._log_probabilities(self.smaller(structure), name)
            self._divergences[name] = float((np.exp(self._intact) * (self._intact - after)).sum(1).mean())
        self.study.progress.advance()
        return self._divergences[name]

    def _log_probabilities(self, classifier: Classifier, name: str) -> NDArray[np.float64]:
        runner = self._runner(classifier, self.sample, name)
        logits = runner.logits([classifier.all_heads.matrix])[0].astype(np.float64)
        logits /= classifier.config.temperature
        return np.asarray(log_softmax(logits, axis=1))

    def _runner(self, classifier: Classifier, data: Judged, name: str) -> Runner:
        there = self.study.runner
        return Runner(classifier, data, cache=there.cache, identity=f"{there.identity} {name}")


def name_of(structure: Structure) -> str:
    """Return a name that differs between structures."""
    digest = hashlib.sha256(repr(sorted(structure.skipped)).encode())
    digest.update(structure.heads.tobytes() + structure.units.tobytes())
    return digest.hexdigest()[:16]


def _rows(data: Judged, rows: Sequence[int]) -> Judged:
    return Judged(
        tuple(data.pairs[i] for i in rows), data.grade[list(rows)], data.query_of[list(rows)], data.queries,
        data.source,
    )  # fmt: skip
