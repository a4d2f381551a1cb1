"""The training of a student: of `headroom distil`, and of the shipped model's smaller sibling."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from headroom.models.checkpoint.config import ModelConfig
from headroom.models.checkpoint.tensors import TensorDict
from headroom.models.learner import Learner
from headroom.models.training.distil.lessons import Lesson, Objective
from headroom.models.training.loop import Progress, Schedule, TimedSchedule, train

RATE = 1e-4
WIDTH = 768
"""The peak rate of a network of this width; the best rate is in inverse proportion to the width (Yang et al.
2022, "Tensor Programs V")."""

WARM_UP = 0.05
"""The share of the training in which the rate rises; afterwards it falls to 0."""

WORDS = "bert.embeddings.word_embeddings.weight"
"""They are not trained: most words occur in no batch."""


@dataclass(frozen=True)
class Student:
    """A network after its training. tensors: by name, float32. losses: one per step of this run."""

    tensors: TensorDict
    config: ModelConfig
    losses: list[float]
    progress: Progress

    @property
    def before_and_after(self) -> tuple[float, float]:
        """Return the mean loss of the first and of the last tenth of the steps; nan without any."""
        tenth = max(1, len(self.losses) // 10)
        return float(np.mean(self.losses[:tenth] or np.nan)), float(np.mean(self.losses[-tenth:] or np.nan))


def peak_rate(config: ModelConfig) -> float:
    """Return the default peak learning rate of a network."""
    return RATE * WIDTH / config.hidden_size


def teach(
    model: Learner,
    objective: Objective,
    make_round: Callable[[int], list[Lesson]],
    schedule: Schedule | TimedSchedule,
    checkpoint: Path,
    *,
    seed: int,
    after_step: Callable[[Progress], None],
) -> Student:
    """Train a student in place; its word embeddings stay.

    make_round: returns a round's lessons, and depends on the round's number alone. checkpoint: the file of
    the run's state, from which a stopped run goes on. after_step: is called after each step.
    """
    model.weight(WORDS).requires_grad_(False)
    losses = list[float]()

    def loss_of(lesson: Lesson) -> Tensor:
        loss = objective.loss(model, lesson)
        losses.append(float(loss.detach()))
        return loss

    progress = train(model, loss_of, make_round, schedule, checkpoint, seed=seed, after_step=after_step)
    return Student(
        {name: tensor.detach() for name, tensor in model.tensors().items()}, model.config, losses, progress
    )
