"""The service on a cluster of two nodes: it scales, is updated without a failed request, and loses a node."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import write_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1600)]


@pytest.fixture(scope="module")
def found(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """In a process of its own: Ray reads the environment once, when it is imported."""
    other = write_checkpoint(tmp_path_factory.mktemp("other"), seed=1)
    with tempfile.TemporaryDirectory(prefix="two-") as directory:  # short: Unix sockets go into it
        command = [sys.executable, "-m", "tests.service.ray.two_serving_nodes", directory]
        done = subprocess.run(
            [*command, tiny_checkpoint, other],
            capture_output=True,
            text=True,
            timeout=1500,
            cwd=Path(__file__).parents[3],
            env=os.environ | {"PYTHONWARNINGS": "ignore"},  # Ray's own
        )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_an_experiment_in_a_sqlite_file_is_refused_at_the_start(found: dict[str, Any]) -> None:
    """Each node would keep results of its own, and say nothing."""
    assert "2 nodes serve together" in found["refused"]
    assert "set HEADROOM_DATABASE_URL to a PostgreSQL" in found["refused"]


def test_tokens_start_a_second_replica_and_requests_spread_over_the_nodes(found: dict[str, Any]) -> None:
    """The script waits until both nodes have answered, and for one replica again; the counts add up."""
    (answers,) = found["scaled_up"]
    assert answers.startswith("200 ")
    assert found["scaled_down"] == [answers], "a replica that stops failed a request"
    assert found["counted"] == found["answered"]
    assert found["stopping"] == "DRAINING", "haproxy.py takes this word for being up"


def test_an_edit_and_a_new_model_are_rolled_out_without_a_failed_request(found: dict[str, Any]) -> None:
    """Each request is answered by one version or by the other."""
    assert len(found["edited"]) == len(found["updated"]) == 2, f"{found['edited']}, {found['updated']}"
    (before, edited) = sorted(found["edited"], key=lambda seen: seen in found["updated"])
    assert before.startswith("200 ")
    assert edited.startswith("200 ")
    (old, new) = sorted(found["updated"], key=lambda seen: seen != edited)
    assert old == edited
    assert new.startswith("200 ")
    assert new.split()[1] != old.split()[1], "another model"
    assert new.split()[2] == old.split()[2], "the same live config"


def test_the_service_goes_on_when_a_node_dies(found: dict[str, Any]) -> None:
    """The script waits for answers from after the death."""
    killed = found["killed"]
    assert set(killed["statuses"]) <= {0, 200, 503}
    assert killed["at_the_end"] == [200]
    assert killed["last_failure_s"] < 10, "docs/operations.md says 2 s; a busy machine may take longer"
