"""Trains the network that a search kept on the intact model's answers, with the code of `headroom distil`."""

import hashlib
import shutil

import numpy as np
import torch
from torch import Tensor

from headroom.models.compress.prune import write_checkpoint
from headroom.models.masks.head_mask import HeadMask
from headroom.models.study.search.networks import RECOVERED, Networks
from headroom.models.study.study import Study
from headroom.models.training.distil.teaching import (
    WARM_UP,
    Student,
    peak_rate,
    remaining_network,
    teach_network,
)
from headroom.models.training.loop import Progress, TimedSchedule

ROUND_PAIRS = 512
"""Pairs that are drawn at a time; as many again are made by swapping titles."""


def recover(networks: Networks, mask: HeadMask, minutes: float) -> Student:
    """Train the network that a mask leaves for some minutes, and write its checkpoint into `recovered`, in
    the source's number format. A study that was stopped goes on from its last checkpoint."""
    study = networks.study
    config = study.classifier.config
    schedule = TimedSchedule(minutes * 60, peak_rate(config), WARM_UP)
    study.progress.start("seconds of training", round(schedule.seconds))
    seconds_shown = 0

    def show(progress: Progress) -> None:
        nonlocal seconds_shown
        seconds = min(round(progress.seconds), round(schedule.seconds))
        study.progress.advance(seconds - seconds_shown)
        seconds_shown = seconds

    name = hashlib.sha256(f"{study.runner.identity} {mask.id}".encode()).hexdigest()[:16]
    unfinished = study.out / f"recovering-{name}.pt"
    for file in study.out.glob("recovering-*.pt"):
        if file != unfinished:  # of another model or network: nothing goes on from it
            file.unlink()
    tensors, cut_config = remaining_network(study.classifier, mask)
    student = teach_network(
        study.classifier,
        tensors,
        cut_config,
        lambda index: _pairs(study, index),
        schedule,
        unfinished,
        seed=study.seed,
        after_step=show,
    )
    directory = study.out / RECOVERED
    shutil.rmtree(directory, ignore_errors=True)
    source = networks.tensors
    taught = {name: tensor.to("cpu", _stored_dtype(source[name])) for name, tensor in student.tensors.items()}
    write_checkpoint(study.source, directory, taught, student.config)
    unfinished.unlink()
    return student


def _stored_dtype(source: Tensor) -> torch.dtype:
    """Return the number format of a tensor that was taught. source: what it was cut from, perhaps in int8."""
    return source.dtype if source.dtype.is_floating_point else torch.float32


def _pairs(study: Study, index: int) -> list[tuple[str, str]]:
    """Return the pairs of a round, drawn from the study's."""
    data = study.data
    rows = np.random.default_rng([study.seed, 13, index]).integers(0, len(data), ROUND_PAIRS)
    return [data.pairs[row] for row in rows.tolist()]
