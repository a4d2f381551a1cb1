"""A variant of the config file, also a cascade, on labelled pairs, for `headroom evaluate --variant`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from models.commands.host import Network, Sides
from models.commands.scoring import evaluation_of
from models.commands.terminal import counted

if TYPE_CHECKING:
    from models.quality.comparison import Side
    from models.quality.labelled import Columns, LabelledPair
    from service.scoring.catalog import Variant


def sides(network: Network, data: Path, columns: Columns) -> Sides:
    """Grade the labelled pairs by the variant and by its baseline.

    That is a cascade's last stage, or the intact model: `full`, or `intact` if the variant has a checkpoint
    of its own or is `full` itself. A smaller network (`@NAME`) is compared with its model.
    """
    from dataclasses import replace

    from models import Classifier, ModelError
    from models.quality.labelled import read_labelled
    from service.cli.choice import read_setup, resolve
    from service.scoring.catalog import BASE
    from service.scoring.offline import whole

    variant = resolve(network)
    classifier = variant.classifier
    grades = classifier.grades
    if not grades:
        raise ModelError(
            f"{classifier.name} gives one score and no grades; evaluate needs a graded classifier"
        )
    pairs = read_labelled(data, grades=len(grades), labels=grades, columns=columns)
    if variant.stages:
        name, base = variant.stages[-1].name, variant.stages[-1]
    elif variant.checkpoint.startswith("@"):
        setup = read_setup(network.model, network.config, network.device, network.dtype)
        name, base = "full", whole(Classifier.load(setup.model, setup.device, setup.dtype))
    else:
        is_base = variant.checkpoint == BASE and variant.name != "full"
        name, base = "full" if is_base else "intact", replace(variant, mask=classifier.all_heads)
    before, _ = _side(name, base, pairs)
    after, stages = _side(variant.name, variant, pairs)
    return Sides([before, after], pairs, grades, stages)


def _side(name: str, variant: Variant, pairs: list[LabelledPair]) -> tuple[Side, dict[str, int]]:
    """Return the grades by a variant, and of a cascade how many pairs ended at each stage."""
    from models.quality.comparison import Side
    from service.scoring.offline import score

    with counted("pairs", len(pairs)) as advance:
        scored = score(variant, [(pair.query, pair.title) for pair in pairs], advance=advance)
    ended = Counter(scored.stages or ())
    stages = {stage.name: ended[stage.name] for stage in variant.stages}
    spec = name if stages else variant.mask.spec
    model = variant.classifier.name
    return Side(name, model, name, spec, evaluation_of(pairs, scored.scores)), stages
