"""Evaluations from Python: `headroom.evaluate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headroom.models.api import evaluation_report
from headroom.models.api.arguments import MARGINS, check_range, errors_name_arguments
from headroom.models.api.data import DIRECTORY, path_of, source_of
from headroom.models.api.shown import as_html
from headroom.models.errors import ModelError
from headroom.models.files import Json, check_no_file
from headroom.models.frame import frame
from headroom.models.masks.head_mask import HeadMask
from headroom.models.quality.classes import BUILT_IN
from headroom.models.quality.comparison import Side, Truth, compare_sides
from headroom.models.quality.labelled import Columns, LabelledPair
from headroom.models.quality.noninferiority import MARGIN
from headroom.models.quality.order import GivenOrder
from headroom.models.quality.reading import read_truth
from headroom.models.quality.scoring import scored
from headroom.models.study import plots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from headroom.models.api.data import Data
    from headroom.models.classifier import Classifier, MaskForm


@dataclass(frozen=True, eq=False, repr=False)
class Evaluated:
    """How well models and masks agree with judged pairs; each of them is a side.

    content: the figures, as report.json has them; each metric, and each paired change of two sides, is an
    `Interval` with value, low and high, at 95 % (bootstrap over queries). labels: the names of the grades.
    """

    content: Json
    labels: tuple[str, ...]

    @classmethod
    def of(
        cls,
        sides: Sequence[Side],
        pairs: Sequence[LabelledPair],
        labels: Sequence[str],
        source: str,
        *,
        margin: float = MARGIN,
        stages: Mapping[str, int] | None = None,
        given: GivenOrder | None = None,
    ) -> Evaluated:
        """Compare the sides. source: where the pairs are from. stages: how many pairs ended at each, of a
        cascade. given: the order that the first side is compared with; default: that of the pairs."""
        content = {
            "schema": 1,
            "model": sides[0].model,
            "data": source,
            **compare_sides(sides, pairs, margin=margin, given=given),
            "stages": stages or None,
        }
        return cls(content, tuple(labels))

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame, one row per side and metric.

        Columns: side, model, head_mask, metric; value, low and high, its 95 % interval; change, change_low
        and change_high, the paired change from the first side, NaN for that side itself.
        Raises ModuleNotFoundError without pandas.
        """
        sides = self.content["sides"]
        first = sides[0]["name"]
        changes = {
            pair["second"]: pair["change"] for pair in self.content["differences"] if pair["first"] == first
        }
        rows: list[Json] = []
        for side in sides:
            about = {"side": side["name"], "model": side["model"], "head_mask": side["head_mask"]}
            for metric, interval in side["metrics"].items():
                change = changes.get(side["name"], {}).get(metric)
                rows.append(
                    {
                        **about,
                        "metric": metric,
                        "value": interval.value,
                        "low": interval.low,
                        "high": interval.high,
                        "change": float("nan") if change is None else change.value,
                        "change_low": float("nan") if change is None else change.low,
                        "change_high": float("nan") if change is None else change.high,
                    }
                )
        return frame({name: [row[name] for row in rows] for name in rows[0]})

    def plot(self) -> Figure:
        """Return a matplotlib figure: NDCG@10 with its interval beside word matching, or of several sides the
        paired change from the first."""
        return plots.drawn(evaluation_report.picture(self.content).draw)

    def report(self, directory: str | PathLike[str]) -> Path:
        """Write what `headroom evaluate --out` does, and return the path of report.html."""
        out = path_of("directory", directory, DIRECTORY)
        check_no_file(out)
        out.mkdir(parents=True, exist_ok=True)
        evaluation_report.write(out, self.content, self.labels)
        return out / "report.html"

    def __repr__(self) -> str:
        return evaluation_report.as_text(self.content)

    def _repr_html_(self) -> str:
        headline = evaluation_report.heading(self.content)
        return as_html(
            headline,
            evaluation_report.verdicts(self.content),
            list(evaluation_report.tables(self.content).values()),
        )


@errors_name_arguments()
def evaluate(
    models: Classifier | Iterable[Classifier] | Mapping[str, Classifier],
    data: Data,
    masks: MaskForm | Iterable[MaskForm] | None = ("none",),
    *,
    query: str = "query",
    title: str = "title",
    grade: str = "grade",
    relevant: int | None = None,
    margin: float = MARGIN,
    position: str | None = None,
    order: str | PathLike[str] | None = None,
    by: str | None = None,
) -> Evaluated:
    """Measure how well models under masks agree with judged pairs, and compare them with each other.

    models: a classifier, several, or several by name. data: a DataFrame, the path of a csv, tsv, jsonl or
    parquet file, or (query, title, grade) tuples. masks: specs, JSON forms or masks; the first is what the
    others are compared with; None: no mask. query, title, grade: the names of the data's columns. relevant:
    the lowest grade that counts as relevant; None: the highest, or 1 for a model with one label. margin: the
    fall of a metric that is accepted. position: the column of the titles' ranks, from 1, in the order that
    you have; or order: a file that holds it (a TREC run, a snapshot of Quepid, queries of UBI); default: the
    order of the rows. by: the classes of queries in which the first model is compared with it: words,
    all-words-in-a-title, script, or a column; default: words.
    Raises ModelError for data that cannot judge these models or a number out of range, InvalidMask for a
    wrong mask.

    >>> evaluated = evaluate(clf, pairs, masks=["none", "6-11.*"])
    >>> table = evaluated.to_frame().set_index(["side", "metric"])
    >>> table.loc[("full 6-11.*", "qwk"), "change"] < 0
    np.True_
    """
    check_range("margin", margin, *MARGINS)
    named = _by_name(models)
    columns = order_columns(Columns(query, title, grade), position, order, by)
    if masks is None:
        masks = "none"
    if isinstance(masks, str | Mapping | HeadMask) or not isinstance(masks, Iterable):
        masks = [masks]
    forms = list(masks)
    if not forms:
        raise ModelError('masks: none given; ["none"] keeps every head')
    of_model = {name: _by_spec(clf, forms) for name, clf in named.items()}
    source = source_of(data, columns)
    truth, labels = read_truth(source, [clf.config for clf in named.values()], columns, relevant)
    sides: list[Side] = []
    for name, clf in named.items():
        sides += sides_of(truth, clf, of_model[name], model=name, is_alone=len(named) == 1)
    return Evaluated.of(
        sides,
        truth.pairs,
        labels,
        str(source),
        margin=margin,
        given=GivenOrder.of(columns, by),
    )


def order_columns(
    columns: Columns, position: str | None, order: str | PathLike[str] | None, by: str | None
) -> Columns:
    """Return the columns with those of the order that a model is compared with.

    position: the column of ranks from 1; or order: a file that holds the order. by: a column of classes, or
    a built-in class. Raises ModelError if both position and order are given.
    """
    if position is not None and order is not None:
        raise ModelError("--position, --order: give one of them")
    return replace(
        columns,
        position=position,
        order=None if order is None else str(order),
        by=None if by in BUILT_IN else by,
    )


def sides_of(
    truth: Truth, clf: Classifier, masks: Mapping[str, HeadMask], *, model: str, is_alone: bool
) -> list[Side]:
    """Return a model under masks, laid on the variant `full`, the intact model, as sides.

    masks: by how they were written. is_alone: no other model is compared, so the sides do not name it.
    Raises ModelError if a score is not finite.
    """
    title = "full" if is_alone else model
    texts = [(pair.query, pair.title) for pair in truth.pairs]
    sides = []
    for written, mask in masks.items():
        name = title if written == "none" else f"{title} {written}"
        scores = scored(clf, texts, None if mask.is_none else mask)
        sides.append(Side(name, model, "full", mask.spec, truth.evaluation(scores, name)))
    return sides


def _by_name(models: Classifier | Iterable[Classifier] | Mapping[str, Classifier]) -> dict[str, Classifier]:
    from headroom.models.classifier import Classifier  # imports torch

    if isinstance(models, Mapping):
        named = dict(models)
    else:
        if isinstance(models, str) or not isinstance(models, Iterable):
            models = [models]
        named = {}
        for number, clf in enumerate(models):
            name = getattr(clf, "name", str(number))
            named[f"{name} {number}" if name in named else name] = clf
    if not named:
        raise ModelError("models: none given")
    for clf in named.values():
        if not isinstance(clf, Classifier):
            raise ModelError(f"models: {clf!r:.60} is no Classifier; Classifier.load(…) returns one")
    return named


def _by_spec(clf: Classifier, forms: Sequence[Any]) -> dict[str, HeadMask]:
    """Return the masks by how they were written, or by their specs. Raises InvalidMask, which says which."""
    masks = {}
    for index, form in enumerate(forms):
        mask = clf.named_mask(f"masks[{index}]", form)
        masks[form.strip() if isinstance(form, str) else mask.spec] = mask
    return masks
