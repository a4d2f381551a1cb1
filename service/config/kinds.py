"""Kinds of score: which one each variant gives, and where a config would mix two kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from headroom.service.config.settings import LiveConfig
from headroom.service.experiments.definition import ORIGINAL, differ

if TYPE_CHECKING:
    from headroom.models.checkpoint.config import ModelConfig


def kind_of_score(model: ModelConfig) -> str:
    """Return what a model gives for a pair, as a phrase."""
    if model.is_graded:
        return f"the grades {', '.join(model.labels)}"
    return f"one score by {model.score_activation}"


def mixed_kinds(config: LiveConfig, kinds: Mapping[str, str | None]) -> Iterator[str]:
    """Yield a sentence for each cascade, brownout and interleaved experiment of different kinds of score.

    kinds: what each variant that is there gives, cascades aside, by the variant's name; `original` may be
        missing.
    """
    of_all = {**kinds, ORIGINAL: None}
    for number, entry in enumerate(config.variants):
        if entry.cascade is None or any(stage.variant not in kinds for stage in entry.cascade):
            continue
        last = entry.cascade[-1].variant
        of_all[entry.name] = kinds[last]
        for index, stage in enumerate(entry.cascade):
            if kinds[stage.variant] != kinds[last]:
                yield (
                    f"variants[{number}].cascade[{index}].variant: {stage.variant} gives "
                    f"{kinds[stage.variant]}, but {last} gives {kinds[last]}; "
                    "the stages of a cascade must give the same"
                )
    default = config.default_variant
    if config.degrade is not None and differ(of_all[config.degrade.variant], of_all[default]):
        stand_in = config.degrade.variant
        yield (
            f"degrade.variant: {stand_in} gives {of_all[stand_in]}, but the default, {default}, gives "
            f"{of_all[default]}; both must give the same"
        )
    for number, experiment in enumerate(config.experiments):
        if (reason := experiment.mixed_scores(of_all)) is not None:
            yield f"experiments[{number}].arms: {reason}"
