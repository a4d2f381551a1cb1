"""Hatchling's hook: a wheel holds compiled kernels, so its tag names the machines that they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsTag(BuildHookInterface):  # type: ignore[type-arg]
    """Tags a wheel for Linux on each machine that `models/ops/built` has kernels for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Change the build's data; called by Hatchling."""
        kernels = Path(self.root, "models", "ops", "built").glob("kernels-*.so")
        machines = {"aarch64" if file.name.startswith("kernels-neon-") else "x86_64" for file in kernels}
        if version == "standard" and machines:
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-" + ".".join(f"linux_{machine}" for machine in sorted(machines))
