"""A cluster whose head dies: with a store a new head takes it up, and without a head the worker ends."""

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import write_checkpoint
from tests.referees import need
from tests.service.ray.dying_head import RECONNECT_S
from tests.service.ray.real_nodes import story

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1600), pytest.mark.more]


@pytest.fixture(scope="module")
def found(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    need("redis-server")
    other = write_checkpoint(tmp_path_factory.mktemp("other"), seed=1)
    return story("dying_head", tiny_checkpoint, other)


def test_no_request_fails_while_the_head_is_away_and_when_another_takes_the_cluster_up(
    found: dict[str, Any],
) -> None:
    """Also while the new head changes the live config and replaces the replica by one with another model."""
    replaced = found["replaced"]
    assert replaced["ready_away"], "a worker that serves said that it does not"
    assert replaced["failed"] == 0, f"{replaced['failed']} of {replaced['answers']}: {replaced['seen']}"
    assert replaced["answers"] > 100


def test_edits_and_experiments_work_under_the_new_head(found: dict[str, Any]) -> None:
    replaced = found["replaced"]
    assert replaced["started"]["status"] == 201, replaced["started"]
    assert replaced["assigned"]["experiment"] == "lower"
    (last,) = replaced["last"]
    (first, edited) = sorted(
        (seen for seen in replaced["seen"] if seen != last),
        key=lambda seen: seen.split()[2] == last.split()[2],
    )
    assert first.split()[1] == edited.split()[1] != last.split()[1], "the model"
    assert first.split()[2] != edited.split()[2] == last.split()[2], "the live config"


def test_an_experiment_in_a_file_is_refused_at_once_while_nobody_can_count_the_nodes(
    found: dict[str, Any],
) -> None:
    """Ray answers no call then: without a limit, the request would wait for the head, and get 201."""
    refused = found["replaced"]["started_away"]
    assert refused["status"] == 503
    assert "how many nodes serve" in refused["body"]["error"]["message"]


def test_a_worker_serves_until_its_time_to_reconnect_is_over(found: dict[str, Any]) -> None:
    """docs/operations.md says how long. Only a head asks the store, so it changes nothing here."""
    abandoned = found["abandoned"]
    assert abandoned["failed"] == 0
    assert RECONNECT_S - 2 < abandoned["served_s"] < RECONNECT_S + 10
