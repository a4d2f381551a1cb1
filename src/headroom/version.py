"""The version of headroom: a tag of git, and between tags what the next release will be called.

    0.3.0                       the commit that is tagged v0.3.0
    0.4.0.dev7+g1a2b3c4d        seven commits later
    0.4.0.dev7+g1a2b3c4d.dirty  with something changed or new in what a wheel, image or chart is built from

Python orders them in this way (PEP 440). Without tags, as after `git clone --depth 1`, CHANGELOG.md names the
last release, and the count is of the commits that are there. Wheels and images have no git: `version.txt`
beside this file holds the version of their commit.

A checkout asks git each time it starts, because `git pull` changes the code of an editable install and not
what pip knows of it. `python src/headroom/version.py` prints the version without anything installed.
"""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
"""Of the checkout, if this is one."""

BUILT_FROM = (
    "src",
    "service",
    "loadtest",
    "models",
    "data/sample",
    "deploy",
    "pyproject.toml",
    "constraints.txt",
    "hatch_build.py",
    ".dockerignore",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
)
"""What a wheel, an image and the chart are built from. Files elsewhere may be a job's output, say."""

RELEASES = "v[0-9]*.[0-9]*.[0-9]*"
"""The tags of releases. A tag that moves with them, such as v1, is none."""

GIT_S = 10.0


@cache
def version() -> str:
    """Return the version. It may run git, so call it off the event loop first."""
    written = HERE / "version.txt"
    if written.exists():
        return written.read_text("utf-8").strip()
    return _from_git() or f"{next_release(_last_release())}.dev0"


def next_release(number: str) -> str:
    """Return the minor release after a release."""
    major, minor = number.split(".")[:2]
    return f"{major}.{int(minor) + 1}.0"


def _from_git() -> str | None:
    """Return the version of the checked-out commit; None without git or a checkout."""
    if not (ROOT / ".git").exists():
        return None
    described = _git("describe", "--tags", "--long", "--abbrev=8", "--match", RELEASES)
    if described:
        tag, distance, commit = described.rsplit("-", 2)
        release = tag.removeprefix("v")
    else:
        release, distance = _last_release(), _git("rev-list", "--count", "HEAD")
        commit = "g" + _git("rev-parse", "--short=8", "HEAD")
    if not distance:  # no git, or no commit
        return None
    changed = _git("status", "--porcelain", "--", *BUILT_FROM)
    if described and distance == "0":
        return f"{release}+dirty" if changed else release
    return f"{next_release(release)}.dev{distance}+{commit}" + (".dirty" if changed else "")


def _last_release() -> str:
    """Return the newest release of CHANGELOG.md, or 0.0.0 without one."""
    changes = ROOT / "CHANGELOG.md"
    text = changes.read_text("utf-8") if changes.exists() else ""
    released = re.search(r"^## (\d+\.\d+\.\d+)", text, re.MULTILINE)
    return released[1] if released else "0.0.0"


def _git(*words: str) -> str:
    """Return what git prints about this checkout, or "" if it fails."""
    # The service may run as another user than the checkout's owner, and from within a hook of another one.
    command = ["git", "-c", f"safe.directory={ROOT}", "--no-optional-locks", *words]
    others = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=others, capture_output=True, text=True, timeout=GIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    print(version())
