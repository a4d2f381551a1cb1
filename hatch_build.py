"""Hatchling's hook: a distribution holds its version, and a wheel's tag names the machines of its kernels."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VERSION_FILE = {"wheel": "headroom/version.txt", "sdist": "src/headroom/version.txt"}
"""Where `headroom.version` looks, in each kind of distribution."""


class Build(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the version. Tags a wheel for Linux on each machine that `models/ops/built` has kernels for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Change the build's data; called by Hatchling. version: "standard" or "editable"."""
        if version != "standard":
            return  # an editable install asks git
        self._directory = TemporaryDirectory()
        file = Path(self._directory.name, "version.txt")
        file.write_text(f"{self.metadata.version}\n", "utf-8")
        build_data["force_include"][str(file)] = VERSION_FILE[self.target_name]
        if self.target_name == "wheel":
            _tag(Path(self.root, "models", "ops", "built"), build_data)

    def finalize(self, *_: object) -> None:
        """Remove what `initialize` wrote; called by Hatchling."""
        if hasattr(self, "_directory"):
            self._directory.cleanup()


def _tag(built: Path, build_data: dict[str, Any]) -> None:
    kernels = built.glob("kernels-*.so")
    machines = {"aarch64" if file.name.startswith("kernels-neon-") else "x86_64" for file in kernels}
    if machines:
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + ".".join(f"linux_{machine}" for machine in sorted(machines))
