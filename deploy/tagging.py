"""Makes a commit a release: the changelog's section gets its number and date, and the commit its tag.

Nothing is pushed. The version moves on by itself: the next commit is a build of the next minor release.
"""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime

from headroom.version import ROOT, next_release, version

CHANGELOG = ROOT / "CHANGELOG.md"
UNRELEASED = "Unreleased"


class NotReleased(Exception):
    """Why a commit is not made a release, or its files are none."""


def notes(number: str) -> str:
    """Return a version's section of CHANGELOG.md; of a build between releases, what is not released yet.

    Raises SystemExit if there is none.
    """
    heading = UNRELEASED if ".dev" in number else number.partition("+")[0]
    section = _section(CHANGELOG.read_text("utf-8"), heading)
    if section is None:
        raise SystemExit(f"CHANGELOG.md has no section {heading}")
    return section.strip() + "\n"


def tag(wanted: str = "", *, required: bool = False) -> str:
    """Release the commit; return what was done, or why nothing was.

    wanted: the number, such as 0.3.1. Default: the next minor release.
    required: whether nothing else than a release will do, as if a number is wanted.

    Raises SystemExit for a wrong number, for a changed tree at a tag, and if what is required cannot be.
    """
    current = version()
    number = wanted or re.split(r"\.dev|\+", current)[0]
    if not re.fullmatch(r"\d+\.\d+\.\d+", number):
        raise SystemExit(f"VERSION={number}: not a release such as {next_release(current)}")
    is_tagged = ".dev" not in current
    try:
        check_clean()
        if not is_tagged:
            _tag(number)
        elif number != current:
            raise NotReleased(f"this commit is v{current} already")
    except NotReleased as error:
        if wanted or required or is_tagged:
            raise SystemExit(f"no release: {error}") from None
        return f"no release: {error}"
    if is_tagged:
        return f"v{number} is tagged here already"
    return f"tagged v{number}; git push origin HEAD v{number} publishes it"


def check_clean() -> None:
    """Raise NotReleased unless the tree is the commit's, without another file that git does not ignore."""
    if not (ROOT / ".git").exists():
        raise NotReleased("this is no checkout of git")
    if _git("status", "--porcelain"):
        raise NotReleased("something in the tree is changed")


def _tag(number: str) -> None:
    """Date the changelog's section, commit that, and tag the commit. Raises NotReleased."""
    text = CHANGELOG.read_text("utf-8")
    changes = _section(text, UNRELEASED) or ""
    if not changes.partition("\n")[2].strip():
        raise NotReleased(f"CHANGELOG.md has nothing below `## {UNRELEASED}`")
    if _git("tag", "--list", f"v{number}") or _section(text, number) is not None:
        raise NotReleased(f"there is a {number} already")
    heading = f"## {UNRELEASED}\n"
    dated = f"{heading}\n## {number} ({datetime.now(UTC):%Y-%m-%d})\n"
    CHANGELOG.write_text(text.replace(heading, dated, 1), "utf-8")
    try:
        _git("commit", "--quiet", "--message", f"headroom {number}", "--", CHANGELOG.name)
        _git("tag", "--annotate", f"v{number}", "--message", f"headroom {number}")
    except subprocess.CalledProcessError as error:
        CHANGELOG.write_text(text, "utf-8")
        raise NotReleased(error.stderr.strip().splitlines()[-1]) from None
    version.cache_clear()


def _section(text: str, heading: str) -> str | None:
    found = re.search(rf"^## {re.escape(heading)}(?= |$).*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return None if found is None else found[0]


def _git(*words: str) -> str:
    """Return what git prints. Raises CalledProcessError."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
