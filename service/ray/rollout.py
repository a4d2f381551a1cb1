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

from headroom.service.config.edits import Unsettled
from headroom.service.ray.cluster import CHECK_TIMEOUT_S, POLL_S, NoAnswer

if TYPE_CHECKING:
    from headroom.service.config.file import ConfigFile
    from headroom.service.ray.cluster import Cluster

APPLY_TIMEOUT_S = 60.0
"""How long a rollout waits for the next replica to apply the config before it gives up."""

SERVING = ("RUNNING", "UPDATING")
"""The states in which Serve lists a replica."""


def apply(cluster: Cluster, config: ConfigFile) -> str | None:
    """Apply a changed `user_config`. Returns why it is refused, or None.

    Raises Unsettled if it is refused and not every replica has returned to the config before.
    """
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
    # A recorded start cannot be taken back: new experiments start when every replica has the config.
    starts_experiments = bool(set(config.live.experiments) - set(previous.live.experiments))
    if starts_experiments:
        reason = _deploy(cluster, config, may_start=False)
    if reason is None:
        reason = _deploy(cluster, config, starts_experiments=starts_experiments)
    if reason is None or cluster.is_stopping():
        return reason
    problem = _deploy(cluster, previous)
    if problem is not None:
        raise Unsettled(f"{reason}; back to the config before: {problem}")
    return reason


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
    reasons = [answer for answer in answers if answer is not None]
    return _refused_by(reasons, len(answers))


def _deploy(
    cluster: Cluster, config: ConfigFile, *, may_start: bool = True, starts_experiments: bool = False
) -> str | None:
    """Deploy a config and wait until each replica has it. Returns why not all have it, or None.

    may_start: as `Cluster.deploy` takes it.
    starts_experiments: whether every replica has it already, and now its experiments may start. The first
        replica records the starts for all, so one is enough, and one that cannot does not matter then.
    """
    try:
        cluster.deploy(config, may_start=may_start)
    except NoAnswer as error:
        return str(error)
    maximum_applied = -1
    replicas = 0
    deadline = 0.0
    while not cluster.is_stopping():
        states: list[tuple[str, str]] = []
        is_settled = False
        with contextlib.suppress(Exception):  # a replica or Serve's controller died: another one is started
            application = cluster.status()
            states = cluster.ask_all("edit_state", config.live.version, may_start)
            replicas = _count(application, ("STARTING", "RECOVERING", *SERVING))
            is_running = application.status == ApplicationStatus.RUNNING
            is_settled = is_running and len(states) == _count(application, SERVING)
        reasons = [reason for state, reason in states if state == "refused"]
        applied = [state for state, _ in states].count("applied")
        if applied and (starts_experiments or (is_settled and applied == len(states))):
            return None
        is_late = applied <= maximum_applied and time.monotonic() > deadline
        if reasons and (is_late or not starts_experiments or len(reasons) == len(states)):
            return _refused_by(reasons, replicas)
        if is_late and maximum_applied < replicas:
            others = f"and no other has in the last {APPLY_TIMEOUT_S:g} s"
            return f"{maximum_applied} of {replicas} replicas have applied it, {others}"
        if is_late:
            return f"Ray Serve has not finished the update in {APPLY_TIMEOUT_S:g} s"
        if applied > maximum_applied:
            maximum_applied = applied
            deadline = time.monotonic() + APPLY_TIMEOUT_S
        time.sleep(POLL_S)
    return "the service stops before every replica has it"


def _refused_by(reasons: Sequence[str], replicas: int) -> str | None:
    """Return one sentence for the reasons of the replicas that refuse a config, or None if none does."""
    if not reasons:
        return None
    count = "" if len(reasons) == replicas else f"{len(reasons)} of {replicas} replicas refused it: "
    return f"{count}{reasons[0]}"


def _count(application: Any, states: Sequence[str]) -> int:
    """Return the number of replicas in these states."""
    deployments = application.deployments.values()
    return sum(deployment.replica_states.get(state, 0) for deployment in deployments for state in states)
