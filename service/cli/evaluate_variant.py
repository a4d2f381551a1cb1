"""`headroom evaluate --variant` measures a variant of the config file, also a cascade, on labelled pairs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.terminal import counted

if TYPE_CHECKING:
    from models.quality.comparison import Side
    from models.quality.evaluation import Evaluation
    from models.quality.labelled import Columns, LabelledPair
    from service.scoring.catalog import Choice

Variant = Annotated[
    str | None,
    typer.Option(
        help="Variant of the config file to measure, beside its intact model (`full`); a cascade beside its "
        "last stage alone, its titles ranked by the cascade's scores."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        help="With --variant: the config file that declares it. Its model, device and dtype count, unless an "
        "option names others."
    ),
]


def sides(
    data: Path,
    columns: Columns,
    model: str | None,
    config: Path | None,
    variant: str,
    device: str,
    dtype: str,
) -> tuple[list[Side], list[LabelledPair], tuple[str, ...], dict[str, int]]:
    """Return what the variant is measured beside, and the variant, on the labelled pairs.

    Also return the pairs, the names of the grades and, of a cascade, how many pairs ended at each stage.
    """
    from models import ModelError
    from models.quality.comparison import Side
    from models.quality.labelled import read_labelled
    from service.cli.choice import resolve

    choice = resolve(model, config, variant, None, device, dtype)
    classifier = choice.variant.classifier
    if not classifier.grades:
        raise ModelError(
            f"{classifier.name} gives one score and no grades; evaluate needs a graded classifier"
        )
    grades = classifier.grades
    pairs = read_labelled(data, grades=len(grades), labels=grades, columns=columns)
    name, base = baseline(choice)
    before, _ = evaluate(base, pairs)
    after, stages = evaluate(choice, pairs)
    sides_of_model = [
        Side(name, classifier.name, name, base.mask.spec, before),
        Side(variant, classifier.name, variant, variant if stages else choice.mask.spec, after),
    ]
    return sides_of_model, pairs, classifier.grades, stages


def baseline(choice: Choice) -> tuple[str, Choice]:
    """Return what a variant is measured beside, and its name: a cascade's last stage, else the intact model.

    That is `full`, or `intact` if the variant has a checkpoint of its own or is `full` itself.
    """
    from dataclasses import replace

    from service.scoring.catalog import BASE

    if choice.stages:
        return choice.stages[-1].variant.name, choice.stages[-1]
    is_base = choice.variant.checkpoint == BASE and choice.variant.name != "full"
    return "full" if is_base else "intact", replace(choice, mask=choice.variant.classifier.all_heads)


def evaluate(choice: Choice, pairs: list[LabelledPair]) -> tuple[Evaluation, dict[str, int]]:
    """Return the variant's grades beside the labels, and of a cascade how many pairs ended at each stage.

    Titles are ranked by the variant's scores. Shows progress on standard error.
    """
    from models.quality.evaluation import Evaluation
    from service.scoring.offline import score

    with counted("{task.completed} of {task.total} pairs", len(pairs)) as advance:
        scored = score(choice, [(pair.query, pair.title) for pair in pairs], advance=advance)
    evaluation = Evaluation(
        [pair.query for pair in pairs],
        [pair.grade for pair in pairs],
        scored.scores.probabilities,
        ranking=scored.scores.raw_score,
    )
    ended = Counter(scored.stages or ())
    return evaluation, {stage.variant.name: ended[stage.variant.name] for stage in choice.stages}
