"""A whole search by time: the network that it chooses, and a speed that it refuses."""

from dataclasses import replace

import numpy as np
import pytest

from headroom import HeadMask, ModelError
from headroom.models.study.page import Result
from headroom.models.study.search import compute
from headroom.models.study.search.networks import Times
from headroom.models.study.study import QUICK, Study
from tests.models.study.data import reported
from tests.models.study.planted import HEADS, LAYERS, NEEDED, planted_study

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    directory = tmp_path_factory.mktemp("by time")
    study = planted_study(directory / "model", queries=10, titles=4, testable=True)
    effort = replace(QUICK, rounds=1)
    return replace(study, what=("heads", "units", "layers"), speedup=3.0, out=directory, effort=effort)


@pytest.fixture(scope="module")
def result(study: Study) -> Result:
    """Heads cost most of a layer's time, and what is removed is saved."""
    heads, units = tuple(range(HEADS + 1)), (8,)
    times = Times(heads, units, np.arange(HEADS + 1.0), np.array([0.08]), (1.0, 1.0), 0.01)
    with pytest.MonkeyPatch.context() as patch:
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


def test_a_speed_that_nothing_has_is_refused(study: Study) -> None:
    with pytest.raises(ModelError, match=r"15 times as fast without some heads: \d+\.\d\d times at most"):
        reported("search", replace(study, what=("heads",), speedup=15.0))
