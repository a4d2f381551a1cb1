"""A whole search by time: what it reports, the files that it leaves, and the checkpoint that it trains."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from headroom import Classifier, HeadMask, ModelError
from headroom.models.quality.bootstrap import Interval
from headroom.models.study.page import Result
from headroom.models.study.runner import Runner
from headroom.models.study.search import compute, networks, recovery
from headroom.models.study.search.networks import Networks, Pace, Times
from headroom.models.study.study import QUICK, Study
from headroom.models.training import loop
from headroom.models.training.distil import teaching
from tests.models.study.data import reported
from tests.models.study.planted import HEADS, LAYERS, NEEDED, planted_study

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    directory = tmp_path_factory.mktemp("by time")
    study = planted_study(directory / "model", queries=10, titles=4, testable=True)
    return replace(
        study, what=("heads", "units", "layers"), speedup=3.0, out=directory / "out",
        recover_minutes=1.0, effort=replace(QUICK, rounds=1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def result(study: Study) -> Result:
    """Every look at the clock of the training is a second later. Heads cost most of a layer's time, and what
    is removed is saved."""
    seconds = count()
    clock = SimpleNamespace(monotonic=lambda: float(next(seconds)))
    heads, units = tuple(range(HEADS + 1)), (8,)
    times = Times(heads, units, np.arange(HEADS + 1.0), np.array([0.08]), (1.0, 1.0), 0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", clock)
        patch.setattr(compute, "measure_times", lambda _: times)
        return reported("search", study)


def test_the_chosen_network_has_the_needed_heads_and_the_wanted_speed(result: Result) -> None:
    chosen = result.json["chosen"]
    assert chosen["speedup_wanted"] == 3
    assert chosen["speedup_predicted"] >= 3
    assert chosen["qwk"] == 1
    assert chosen["holdout"]["passed"]
    kept = HeadMask.parse(chosen["spec"], layers=LAYERS, heads=HEADS)
    assert set(NEEDED) <= {tuple(head) for head in np.argwhere(kept.matrix)}
    assert set(kept.skipped) <= {2, 3}
    assert (chosen["layers_on"], chosen["heads_on"]) == (len(kept.layers_kept), kept.heads_on)


def test_the_trained_checkpoint_is_written(result: Result, study: Study) -> None:
    recovered = result.json["recovered"]
    trained = Classifier.load(study.out / recovered["directory"], "cpu", "float32")
    assert trained.num_layers == result.json["chosen"]["layers_on"]
    assert 1 < recovered["steps"] < 60
    assert (
        recovered["holdout"]["queries_that_count"] == result.json["chosen"]["holdout"]["queries_that_count"]
    )
    assert "minutes of distillation" in result.verdict
    assert "There it " in result.verdict, "the trained network is judged on the held-out queries"


def test_a_speed_that_nothing_has_is_refused(study: Study) -> None:
    with pytest.raises(ModelError, match=r"15 times as fast without some heads: \d+\.\d\d times at most"):
        reported("search", replace(study, what=("heads",), speedup=15.0))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Networks take the time of their heads; on a machine that is busy, all take the same time."""
    machine = SimpleNamespace(busy=False)

    def in_turns(calls: Sequence[Any], rounds: int, _: object) -> np.ndarray:
        configs = [call.func.__self__.config for call in calls]
        seconds = np.array([1e-3 + sum(map(len, config.kept_heads)) for config in configs])
        return np.ones((rounds, len(calls))) * (1.0 if machine.busy else seconds)

    monkeypatch.setattr(networks, "in_turns", in_turns)
    return machine


def cached_study(directory: Path, **options: Any) -> Study:
    study = planted_study(directory / "model", queries=10, titles=4)
    runner = Runner(study.classifier, directory / "cache", "planted")
    out = directory / "out"
    return replace(study, runner=runner, out=out, effort=replace(QUICK, rounds=1), **options)


def test_a_search_that_was_stopped_in_its_training_goes_on_with_it(
    tmp_path: Path, machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times that were measured anew chose other networks, and an hour of training was lost."""
    study = cached_study(tmp_path, speedup=2.0, recover_minutes=1.0)
    clock = SimpleNamespace(monotonic=Mock(side_effect=[*map(float, range(40)), KeyboardInterrupt]))
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 5.0)
    with pytest.raises(KeyboardInterrupt):
        reported("search", study)
    (unfinished,) = study.out.glob("recovering-*.pt")
    (study.out / "recovering-0.pt").write_bytes(b"of another model")
    found = []

    def teach_network(*arguments: Any, **options: Any) -> Any:
        found.extend(file for file in study.out.glob("recovering-*.pt") if file in arguments)
        return teaching.teach_network(*arguments, **options)

    monkeypatch.setattr(recovery, "teach_network", teach_network)
    machine.busy = True
    clock.monotonic = Mock(side_effect=map(float, count()))
    reported("search", study)
    assert found == [unfinished]
    assert not list(study.out.glob("recovering-*.pt"))


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ([(1.9, 2.1)], ""),
        ([(2.04, 8.81), (1.9, 2.1)], ""),
        ([(2.04, 8.81), (2.1, 7.9)], "That interval is very wide, twice: the machine is busy"),
        (
            [(1.2, 1.3), (1.25, 1.3)],
            "It was to be 2 ×, by the times of its parts; measured twice",
        ),
    ],
)
def test_a_speed_that_is_uncertain_or_not_as_wanted_is_measured_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[tuple[float, float]], said: str
) -> None:
    turns = iter(measured)

    def paces(_: Networks, masks: Sequence[HeadMask]) -> list[Pace]:
        low, high = next(turns)
        return [Pace(100.0, Interval((low + high) / 2, low, high)) for _ in masks]

    monkeypatch.setattr(Networks, "paces", paces)
    result = reported("search", cached_study(tmp_path, speedup=2.0))
    assert next(turns, None) is None
    doubt = [words for words in ("very wide", "It was to be") if words in result.verdict]
    assert len(doubt) == bool(said)
    assert said in result.verdict


def test_times_by_which_nothing_is_fast_enough_are_measured_again(
    tmp_path: Path, machine: SimpleNamespace
) -> None:
    study = cached_study(tmp_path, speedup=2.0)
    machine.busy = True
    with pytest.raises(ModelError, match="no network is 2 times as fast"):
        reported("search", study)
    machine.busy = False
    assert reported("search", study).json["chosen"]["speedup_predicted"] >= 2
