"""The measurement of the scheduler's policies: if it were wrong, a policy could go that users need."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import policies
from benchmarks.simulation import CORE_TOKENS_PER_S, PASS_S, TITLE_TOKENS

ONE_BY_ONE = policies.WORKLOADS["20 titles, one request after the other"]


def test_a_lone_request_takes_as_long_as_the_device_in_every_run() -> None:
    figures = policies.play(ONE_BY_ONE, rounds=1)
    half = PASS_S + 10 * TITLE_TOKENS / CORE_TOKENS_PER_S
    assert figures["small_p50_ms"] == figures["small_p99_ms"] == pytest.approx(1000 * half, abs=0.1)
    assert figures["titles_per_second"] == pytest.approx(20 / half, rel=0.01)
    assert policies.play(ONE_BY_ONE, rounds=1) == figures


def test_a_policy_is_off_for_one_run_and_its_figure_changes() -> None:
    both_cores = policies.play(ONE_BY_ONE, rounds=1)
    one_batch = policies.play(ONE_BY_ONE, rounds=1, policy_off="splitting")
    assert one_batch["small_p99_ms"] > 1.2 * both_cores["small_p99_ms"]
    assert policies.play(ONE_BY_ONE, rounds=1) == both_cores


def test_a_request_that_starves_shows_and_one_that_is_merely_open_does_not() -> None:
    """Without ageing, small requests keep large ones from ever being answered."""
    crowd = policies.WORKLOADS["20 titles, 110 % load, beside 1,000"]
    assert policies.play(crowd, rounds=1, policy_off="ageing")["large_p50_ms"] == 1000 * policies.RUN_S
    run = policies.Run(crowd, 0)
    run.play()
    answered = 1000 * np.percentile(run.latencies["small"], 50)
    assert policies.play(crowd, rounds=1)["small_p50_ms"] == round(float(answered), 1)
    assert run.open_ages["small"]


def test_a_policy_that_helps_nobody_is_named() -> None:
    base = {"small_p50_ms": 10.0, "small_p99_ms": 20.0, "titles_per_second": 100.0, "refused": 0, "late": 0}
    better = base | {"small_p99_ms": 10.0}
    sides = {policies.ALL_ON: base, "sharing": base | {"titles_per_second": 80.0}, "ageing": better}
    result = {"rounds": 1, "run_s": 20.0, "workloads": {"a crowd": sides}}
    missed = policies.missed(result)
    assert len(missed) == len(policies.POLICIES) - 1
    assert not any(line.startswith("sharing:") for line in missed)
    assert "|  | sharing | 10, 20 ms | – | **80** | 0 | 0 |" in policies.as_markdown(result)
