"""What a student is taught with a batch."""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from headroom import Classifier
from headroom.models.training.distil.lessons import Lesson, Objective
from headroom.models.training.distil.losses import calibrated, margin_mse, raw_scores

LISTS = torch.tensor([[0, 1, 2], [3, 4, -1]])


def test_margins_are_divided_by_the_spread_of_the_wanted_scores(clf: Classifier) -> None:
    """A teacher whose scores are spread ten times as wide must not weigh its margins a hundred times."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, len(clf.grades), generator=generator)
    wanted = 3 * torch.randn(5, generator=generator)

    class Student:
        def with_states(self, _pairs: object) -> tuple[Tensor, None]:
            return logits, None

    config = replace(clf.config, temperature=1.0)
    lesson = Lesson(pairs=(), lists=LISTS, scores=wanted, log_probabilities=None, states=None)
    loss = {
        spread: float(Objective(config, spread).loss(cast(Any, Student()), lesson)) for spread in (1.0, 2.0)
    }
    margins = float(margin_mse(raw_scores(calibrated(logits, config)), wanted, LISTS))
    assert loss[1.0] - loss[2.0] == pytest.approx(margins * (1 - 1 / 4), rel=1e-4)
