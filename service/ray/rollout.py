"""Brings an edit of the live config to all replicas of `headroom serve`, or to none.

Each replica is asked first whether it would refuse it. If one refuses only while it applies it, all of them
return to the config before. (With `serve deploy`, nobody asks: each replica judges an edit by itself.)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ray.serve.schema import ApplicationStatus

from headroom.service.config.edits import Unsettled
from headroom.service.ray.cluster import CHECK_TIMEOUT_S, SERVING, NoAnswer, count_replicas

if TYPE_CHECKING:
    from headroom.service.config.file import ConfigFile
    from headroom.service.ray.cluster import Cluster

APPLY_TIMEOUT_S = 60.0
"""How long a rollout waits for the next replica to apply the config before it gives up."""

POLL_S = 0.1
"""How often a rollout looks at the replicas."""


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
            f"checkpoint); save it again to wait longer"
        )
    if reason is not None:
        with contextlib.suppress(TimeoutError):
            # So that no replica keeps checkpoints that only the refused config needs.
            _refusal(cluster, previous)
        return reason
    # A recorded start cannot be taken back: new experiments start when every replica has the config. The
    # first replica records the starts for all, so one that cannot does not matter then.
    starts_experiments = bool(set(config.live.experiments) - set(previous.live.experiments))
    reason = _deploy(cluster, config, may_start=not starts_experiments)
    if starts_experiments and reason is None:
        reason = _deploy(cluster, config, one_is_enough=True)
    if reason is None or cluster.is_stopping():
        return reason
    problem = _deploy(cluster, previous)
    if problem is not None:
        raise Unsettled(f"{reason}; back to the config before: {problem}")
    return reason


def _refusal(cluster: Cluster, config: ConfigFile) -> str | None:
    """Ask all replicas, and return why one of them would refuse the config, or None. Changes nothing.

    Raises TimeoutError if the replicas do not answer in time.
    """
    try:
        answers = cluster.ask_all("refusal", config.live.model_dump(mode="json"))
    except TimeoutError:
        raise
    except Exception as error:  # no replica answers, or one died meanwhile
        return f"not every replica could check it ({type(error).__name__}); save it again"
    reasons = [answer for answer in answers if answer is not None]
    return _refused_by(reasons, len(answers)) if reasons else None


def _deploy(
    cluster: Cluster, config: ConfigFile, *, may_start: bool = True, one_is_enough: bool = False
) -> str | None:
    """Deploy a config and wait until each replica has it. Returns why not all have it, or None.

    may_start: whether the config's new experiments start.
    one_is_enough: wait for one replica only, and give up only once all of them refuse.
    """
    try:
        cluster.deploy(config, may_start=may_start)
    except NoAnswer as error:
        return str(error)
    progress = RolloutProgress()
    maximum_applied = 0
    deadline = time.monotonic() + APPLY_TIMEOUT_S
    while not cluster.is_stopping():
        with contextlib.suppress(Exception):  # a replica or Serve's controller died: another one is started
            progress = _progress(cluster, config, may_start)
        if progress.is_finished or (one_is_enough and progress.applied):
            return None
        refused = len(progress.reasons)
        if refused and (refused == progress.replicas or not one_is_enough):
            return _problem(progress)
        if progress.applied > maximum_applied:
            maximum_applied = progress.applied
            deadline = time.monotonic() + APPLY_TIMEOUT_S
        elif time.monotonic() > deadline:
            return _problem(progress)
        time.sleep(POLL_S)
    return "the service stops before every replica has it"


class RolloutProgress(NamedTuple):
    """The progress of the replicas with a config.

    replicas: their number, with those that start. applied: how many have it. reasons: of those that refuse
    it. is_finished: whether all have it, and Serve has finished the update.
    """

    replicas: int = 0
    applied: int = 0
    reasons: Sequence[str] = ()
    is_finished: bool = False


def _progress(cluster: Cluster, config: ConfigFile, may_start: bool) -> RolloutProgress:
    """Ask Serve and all replicas that it lists. Raises their errors."""
    application = cluster.status()
    states = cluster.ask_all("edit_state", config.live.version, may_start)
    applied = [state for state, _ in states].count("applied")
    serving = count_replicas(application, SERVING)
    is_running = application.status == ApplicationStatus.RUNNING
    return RolloutProgress(
        replicas=serving + count_replicas(application, ("STARTING", "RECOVERING")),
        applied=applied,
        reasons=[reason for state, reason in states if state == "refused"],
        is_finished=is_running and 0 < applied == len(states) == serving,
    )


def _problem(progress: RolloutProgress) -> str:
    """Return why some replicas do not have the config."""
    if progress.reasons:
        return _refused_by(progress.reasons, progress.replicas)
    if progress.applied < progress.replicas:
        others = f"and no other has in the last {APPLY_TIMEOUT_S:g} s"
        return f"{progress.applied} of {progress.replicas} replicas have applied it, {others}"
    return f"Ray Serve has not finished the update in {APPLY_TIMEOUT_S:g} s"


def _refused_by(reasons: Sequence[str], replicas: int) -> str:
    """Return one sentence for the reasons of the replicas that refuse a config."""
    if len(reasons) == replicas:
        return reasons[0]
    return f"{len(reasons)} of {replicas} replicas refused it: {reasons[0]}"
