"""The mended controller, tried on Serve's own classes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest


class Replica:
    """The part of Serve's replica that its container reads."""

    def __init__(self, number: int) -> None:
        self.replica_id = number
        self.version: Any = "before"
        self.state: Any = None

    def update_state(self, state: Any) -> None:
        self.state = state


@pytest.fixture
def state() -> Any:
    """Serve's states of a replica."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.serve._private.common import ReplicaState
    return ReplicaState


@pytest.fixture
def container(state: Any) -> Any:
    """A mended container with two running replicas."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.serve._private.deployment_state import ReplicaStateContainer

        from service.ray.controller import forget_versions

    class Mended(ReplicaStateContainer):  # type: ignore[misc]
        """Takes the change in place of Serve's class, which other tests use."""

    forget_versions(Mended)
    mended = Mended()
    for number in range(2):
        mended.add(state.RUNNING, Replica(number))
    return mended


def test_versions_without_replicas_are_forgotten(state: Any, container: Any) -> None:
    for edit in range(20):
        for replica in container.pop(states=[state.RUNNING]):
            replica.version = f"edit {edit}"
            container.add(state.UPDATING, replica)
        for replica in container.pop(states=[state.UPDATING]):
            container.add(state.RUNNING, replica)
    assert dict(container._sv_counts) == {(state.RUNNING, "edit 19"): 2}
    assert len(container.get()) == 2


def test_versions_that_replicas_have_are_counted_as_before(state: Any, container: Any) -> None:
    (taken,) = container.pop(states=[state.RUNNING], max_replicas=1)
    taken.version = "after"
    container.add(state.RUNNING, taken)
    both = {(state.RUNNING, "before"): 1, (state.RUNNING, "after"): 1}
    assert dict(container._sv_counts) == both
    assert container.pop(states=[state.STARTING]) == []
    assert dict(container._sv_counts) == both
    assert container.remove([taken.replica_id]) == [taken]
    assert dict(container._sv_counts) == {(state.RUNNING, "before"): 1}


@pytest.fixture
def edited() -> Any:
    """Makes a mended deployment of a name, as the controller holds one after each config edit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.serve._private.config import DeploymentConfig
        from ray.serve._private.deployment_info import DeploymentInfo

        from service.ray.controller import share_actor_class

    class Mended(DeploymentInfo):  # type: ignore[misc]
        """Takes the change in place of Serve's class, which other tests use."""

    share_actor_class(Mended)
    return lambda name: Mended(DeploymentConfig(), None, 0, "01000000", name)


def test_the_replicas_of_all_edits_are_of_one_class(edited: Any) -> None:
    ours = edited("ours").actor_def
    assert edited("ours").actor_def is ours
    another = edited("another").actor_def
    assert another is not ours
    assert another.__ray_metadata__.class_name == "another"
