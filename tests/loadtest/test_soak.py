"""The service under faults and attacks for two minutes: nothing hangs, nothing is lost, no counter falls."""

import json

import pytest

from headroom.loadtest.plan import make_plan, read_scenario
from tests.loadtest.conftest import Soak

pytestmark = pytest.mark.more


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_minutes_of_faults_and_attacks_leave_no_problem(soak: Soak) -> None:
    soak.process.wait()
    log = (soak.out / "log").read_text()
    assert soak.process.returncode in (0, 3), log  # 3: this client was too slow, on a busy machine
    report = json.loads((soak.out / "report.json").read_text())
    watched, requests = report["watch"], report["requests"]
    assert watched["problems"] == [], log
    assert requests["ok"] + sum(requests["errors"].values()) == requests["scheduled"] > 200
    assert requests["ok"] > 0
    planned = {event["name"] for event in read_scenario("soak")["events"]}
    assert {event["name"] for event in report["events"]} == planned
    answers = {event["name"]: event["said"]["answers"] for event in report["events"] if "said" in event}
    assert answers["slow-loris"].get("408", 0) + answers["slow-loris"].get("503", 0) > 0
    assert answers["hang-ups"]["hung up"] > 10
    assert watched["scrapes"] > 10


def test_a_soak_that_is_not_told_its_length_is_one_of_forty_minutes_at_70_percent() -> None:
    plan = make_plan({**read_scenario("soak"), "url": "http://127.0.0.1:1"})
    assert (plan.duration, plan.saturation_factor, plan.watch) == (2400, 0.7, True)
