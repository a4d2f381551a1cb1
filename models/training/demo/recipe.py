"""The recipe of a model: every choice that makes it, in one YAML file."""

from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from models.training.loop import Schedule


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Network(_Section):
    """The shape of the model. It starts with `first_layers` and is later stacked to `layers`."""

    first_layers: int = 4
    layers: int = 12
    heads: int = 12
    hidden: int = 192
    feed_forward: int = 768
    max_tokens: int = 128
    vocabulary: int = 16_000


class Stage(_Section):
    """Steps at a rate, on sequences of up to `max_tokens` tokens, in batches of up to `batch_tokens`.

    `pairs_per_round` pairs at a time are made, tokenized and sorted by length.
    """

    steps: int
    rate: float
    decay: float = 0.3
    max_tokens: int = 64
    batch_tokens: int = 4096
    pairs_per_round: int = 16_000
    seed: int = 1

    def schedule(self) -> Schedule:
        """Return the stage's learning-rate schedule."""
        return Schedule(self.steps, self.rate, decay=self.decay)


class GradedStage(Stage):
    """A stage on graded pairs: `shares` by kind of pair; `layers` to grow to before it starts.

    ranking_weight: the weight of the ranking loss within queries beside that of the grades.
    judged_shares: of the human labels, by source family; if there are none, the recipe's.

    It begins with the weights that the stage before it handed on, or with a weighted mean of those that
    earlier stages handed on (`begins_with`: shares by stage).

    It hands on `learnt` × its weights + (1 − learnt) × the weights it began with, which fit the few human
    labels a little less and do better elsewhere (Wortsman et al. 2022, WiSE-FT). hands_on: whether "its
    weights" are the best on the validation folds or the last ones; the last ones suit a stage whose lessons
    the folds do not measure.
    """

    name: str
    layers: int
    shares: dict[str, float]
    dropout: float = 0.0
    ranking_weight: float = 0.0
    judged_shares: dict[str, float] = {}
    validate_minutes: float = 8.0
    learnt: float = 1.0
    hands_on: Literal["best", "last"] = "best"
    begins_with: dict[str, float] = {}


class Recipe(_Section):
    """The whole recipe. judged_shares: of the human labels, by source family.

    begins_from: a checkpoint directory whose tokenizer and weights the first graded stage begins with; if
    there is none, the recipe trains a vocabulary and pre-trains the first layers (`pretrain`).

    average: the share of each graded stage's weights in the finished model (Wortsman et al. 2022, model
    soups); if it is empty, the finished model has the last stage's weights.
    """

    seed: int = 0
    network: Network = Network()
    begins_from: Path | None = None
    pretrain: Stage | None = None
    graded: tuple[GradedStage, ...]
    judged_shares: dict[str, float]
    validation_dbpedia_pairs: int = 1500
    average: dict[str, float] = {}

    def averaged_stages(self) -> set[str]:
        """Return the stages whose results are needed again after the next has begun."""
        return {*self.average, *(name for stage in self.graded for name in stage.begins_with)}

    @model_validator(mode="after")
    def _begins_somewhere(self) -> Self:
        if (self.begins_from is None) == (self.pretrain is None):
            raise ValueError("give either begins_from or pretrain")
        return self

    @model_validator(mode="after")
    def _averages_stages(self) -> Self:
        earlier: dict[str, int] = {}
        for stage in self.graded:
            _check_average(f"{stage.name}: begins_with", stage.begins_with, earlier, stage.layers)
            earlier[stage.name] = stage.layers
        _check_average("average", self.average, earlier, self.network.layers)
        return self


def _check_average(name: str, shares: dict[str, float], layers: dict[str, int], wanted: int) -> None:
    if any(layers.get(stage) != wanted for stage in shares):
        raise ValueError(f"{name}: names stages of {wanted} layers that came before")
    if shares and abs(sum(shares.values()) - 1) > 1e-6:
        raise ValueError(f"{name}: the shares add up to 1")


def read_recipe(path: Path) -> Recipe:
    """Read and check a recipe; raises pydantic.ValidationError on a missing, unknown or wrong key."""
    return Recipe.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
