"""The list of exact versions that `make install` and the image use."""

import tomllib
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from headroom.version import ROOT


def project() -> dict[str, list[Requirement]]:
    """The requirements of pyproject.toml by extra; "" are those without one. Our own extras are left out."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {"": about["dependencies"]} | about["optional-dependencies"]
    parsed = {extra: [Requirement(line) for line in lines] for extra, lines in extras.items()}
    return {extra: [line for line in lines if line.name != "headroom"] for extra, lines in parsed.items()}


def installed_for(requirements: list[Requirement]) -> dict[str, str]:
    """The versions of what is installed for requirements, and for what those require."""
    versions: dict[str, str] = {}
    seen = set()
    waiting = [(line.name, extra) for line in requirements for extra in ("", *line.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) not in seen:
            seen.add((name, extra))
            package = distribution(name)
            versions[canonicalize_name(name)] = Version(package.version).public
            for line in map(Requirement, package.requires or []):
                if line.marker is None or line.marker.evaluate({"extra": extra}):
                    waiting += [(line.name, wanted) for wanted in ("", *line.extras)]
    return versions


TEST_ALL = {"docs", "test-all"}
"""The extras that `make test` does not install."""


@pytest.mark.parametrize(
    "extras",
    [project().keys() - TEST_ALL, pytest.param(TEST_ALL, marks=pytest.mark.more)],
    ids=["test", "all"],
)
def test_constraints_hold_the_version_of_everything_that_pip_installs(extras: set[str]) -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    listed = {canonicalize_name(name): version for name, version in pinned.items()}
    installed = installed_for([line for extra in extras for line in project()[extra]])
    assert len(installed) > 20
    assert {name: version for name, version in installed.items() if listed.get(name) != version} == {}
