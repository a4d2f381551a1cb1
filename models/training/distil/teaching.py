"""The training of a student: of `headroom distil`, of what a study's search keeps, and of the shipped model's
smaller sibling."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from headroom.models.checkpoint.config import ModelConfig
from headroom.models.checkpoint.tensors import TensorDict, read_tensors
from headroom.models.classifier import Classifier
from headroom.models.compress.prune import cut
from headroom.models.learner import Learner
from headroom.models.masks.head_mask import HeadMask
from headroom.models.quality.labelled import query_key
from headroom.models.training.distil.lessons import Lesson, Objective, Rounds, Scale, Targets, TeacherTargets
from headroom.models.training.distil.pairs import Pair
from headroom.models.training.distil.teacher import Teacher
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


def remaining_network(teacher: Classifier, mask: HeadMask) -> tuple[TensorDict, ModelConfig]:
    """Return what a mask leaves of a classifier's network, as `teach_network` takes it.

    The weights are those of the checkpoint, because what is served may be rounded to bfloat16. Of int8, and
    of a classifier that was not loaded from a directory, they are the served ones. Raises ModelError if the
    mask keeps no head.
    """
    if teacher.directory is None or teacher.config.int8:
        return cut(teacher.network.in_plain_torch().tensors(), replace(teacher.config, int8=False), mask)
    return cut(read_tensors(teacher.directory, teacher.config), teacher.config, mask)


def teach_network(
    teacher: Classifier,
    tensors: TensorDict,
    config: ModelConfig,
    pairs_of: Callable[[int], Sequence[tuple[str, str]]],
    schedule: Schedule | TimedSchedule,
    checkpoint: Path,
    *,
    seed: int = 0,
    swaps: bool = True,
    after_step: Callable[[Progress], None] = lambda _: None,
) -> Student:
    """Train a network on the answers of a classifier that it was once cut from.

    tensors, config: of the network, which has the classifier's hidden size, grades and tokenizer.
    pairs_of: the (query, title) pairs of each round. swaps: more pairs are made of them by swapping titles.
    checkpoint: the file to go on from, if it is there.
    """
    model = Learner(config, tensors).to(teacher.network.device)
    asked = Teacher(teacher, teacher.tokenizer, states=config.decoder is None)
    first = asked.answers([Pair(*pair) for pair in pairs_of(0)])
    graded = config.is_graded
    spread = float(TeacherTargets(asked, Scale(), same_grades=graded).of(first).scores.std()) or 1.0
    targets = TeacherTargets(asked, Scale(spread=spread), same_grades=graded)

    def targets_of(_: Sequence[Pair], answers: np.ndarray | None) -> Targets:
        assert answers is not None
        return targets.of(answers)

    rounds = Rounds(
        portions=None,
        read=lambda index: [Pair(*pair) for pair in pairs_of(index)],
        tokenizer=teacher.tokenizer,
        answer=lambda pairs, _: asked.answers(pairs),
        targets_of=targets_of,
        key_of=query_key,
        seed=seed,
        swaps=swaps,
    )
    return teach(
        model, Objective(config, spread), rounds.make, schedule, checkpoint, seed=seed, after_step=after_step
    )
