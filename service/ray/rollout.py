"""Brings an edit of the live config to all replicas, or to none.

Each replica is asked first whether it would refuse it. If one refuses only while it applies it, all of them
return to the config before.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray.serve.schema import ApplicationStatus

from service.ray.cluster import CHECK_TIMEOUT_S, POLL_S

if TYPE_CHECKING:
    from service.config.file import ConfigFile
    from service.ray.cluster import Cluster

APPLY_TIMEOUT_S = 60.0
"""How long a rollout waits for the next replica to apply the config before it gives up."""


def apply(cluster: Cluster, config: ConfigFile) -> str | None:
    """Apply a changed `user_config`. Returns why a replica refuses it, or None."""
    previous = cluster.deployed
    assert previous is not None
    try:
        reason = _refusal(cluster, config)
    except TimeoutError:
        # The replicas go on, and keep what they have loaded for the next attempt.
        if cluster.is_stopping():
            return "the service stops before every replica has checked it"
        return (
            f"the replicas have not checked it in {CHECK_TIMEOUT_S:g} s (they may still be loading a "
            "checkpoint); save it again to wait longer"
        )
    if reason is not None:
        with contextlib.suppress(TimeoutError):
            # So that no replica keeps checkpoints that only the refused config needs.
            _refusal(cluster, previous)
        return reason
    cluster.deploy(config)
    reason = _wait_until_applied(cluster, config)
    if reason is None or cluster.is_stopping():
        return reason
    cluster.deploy(previous)
    problem = _wait_until_applied(cluster, previous)
    return reason if problem is None else f"{reason}; back to the config before: {problem}"


def _refusal(cluster: Cluster, config: ConfigFile) -> str | None:
    """Ask all replicas, and return why one of them would refuse the config, or None. Changes nothing.

    Raises TimeoutError as `Cluster.ask_all` does.
    """
    try:
        answers = cluster.ask_all("refusal", config.live.model_dump(mode="json"))
    except TimeoutError:
        raise
    except Exception as error:  # no replica answers, or one died meanwhile
        return f"not every replica could check it ({type(error).__name__}); save it again"
    return _refused_by([answer for answer in answers if answer is not None], len(answers))


def _wait_until_applied(cluster: Cluster, config: ConfigFile) -> str | None:
    """Wait until each replica has the config or one refuses it. Returns why not all have it, or None."""
    best, replicas, deadline = -1, 0, 0.0
    while not cluster.is_stopping():
        try:
            application = cluster.status()
            verdicts = cluster.ask_all("verdict", config.live.version)
            is_settled = application.status == ApplicationStatus.RUNNING
            running = _running(application)
        except Exception:  # a replica or Serve's controller died: another one is started
            is_settled, verdicts, running = False, [], 0
        replicas = len(verdicts) or replicas
        reasons = [reason for verdict, reason in verdicts if verdict == "refused"]
        if reasons:
            return _refused_by(reasons, replicas)
        applied = [verdict for verdict, _ in verdicts].count("applied")
        if is_settled and applied and applied == len(verdicts) == running:
            return None
        if applied > best:
            best, deadline = applied, time.monotonic() + APPLY_TIMEOUT_S
        elif time.monotonic() > deadline:
            return f"{best} of {replicas} replicas have applied it, the others not in {APPLY_TIMEOUT_S:g} s"
        time.sleep(POLL_S)
    return "the service stops before every replica has it"


def _refused_by(reasons: Sequence[str], replicas: int) -> str | None:
    """Return one sentence for the reasons of the replicas that refuse a config, or None if none does."""
    if not reasons:
        return None
    count = "" if len(reasons) == replicas else f"{len(reasons)} of {replicas} replicas refused it: "
    return f"{count}{reasons[0]}"


def _running(application: Any) -> int:
    """Return the number of serving replicas."""
    states = [deployment.replica_states for deployment in application.deployments.values()]
    return sum(each.get(kind, 0) for each in states for kind in ("RUNNING", "UPDATING"))
