"""Mends Ray Serve's controller: how it keeps HAProxy running, and what stays in memory of old edits.

The controller calls `install` when it starts (`RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH`). This module uses
private names of Ray 2.60; if one of them is gone, the start and the tests fail.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve._private.deployment_state import ReplicaStateContainer

from service.ray import front


def install() -> None:
    """Mend the controller of this process."""
    front.install()
    forget_versions(ReplicaStateContainer)
    share_actor_class(DeploymentInfo)


def forget_versions(container: type[ReplicaStateContainer]) -> None:
    """Let the counts of replicas by version forget the versions that no replica has.

    Every config edit is a version. Serve would keep its key for ever, and with it the whole configuration:
    0.3 MB an edit (https://github.com/ray-project/ray/pull/64699).
    """
    assert not container()._sv_counts
    for name in ("pop", "remove"):
        setattr(container, name, _then_forgetting(getattr(container, name)))


def _then_forgetting(take_out: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @functools.wraps(take_out)
    def and_forget(self: ReplicaStateContainer, *arguments: Any, **options: Any) -> list[Any]:
        taken = take_out(self, *arguments, **options)
        for key in [key for key, count in self._sv_counts.items() if not count]:
            del self._sv_counts[key]
        return taken

    return and_forget


def share_actor_class(info: type[DeploymentInfo]) -> None:
    """Let all replicas of a deployment be of one class, whatever edit they start under.

    Serve makes a class of the same content for each config edit that a replica starts under. Every process
    that gets a handle of the replica unpickles it and keeps it for ever: some 60 kB each.
    """
    make = info.actor_def.fget
    classes: dict[str, Any] = {}

    def actor_def(self: DeploymentInfo) -> Any:
        if self.actor_name not in classes:
            classes[self.actor_name] = make(self)
        return classes[self.actor_name]

    info.actor_def = property(actor_def)
