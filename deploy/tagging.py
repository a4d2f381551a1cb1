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


def notes(number: str) -> str:
    """Return a version's section of CHANGELOG.md; of a build between releases, what is not released yet.

    Raises SystemExit if there is none.
    """
    heading = UNRELEASED if ".dev" in number else number.partition("+")[0]
    section = _section(CHANGELOG.read_text("utf-8"), heading)
    if section is None:
        raise SystemExit(f"CHANGELOG.md has no section {heading}")
    return section.strip() + "\n"


def tag(wanted: str = "") -> str:
    """Release the commit; return what was done, or why nothing was.

    wanted: the number, such as 0.3.1. Default: the next minor release. Raises SystemExit for a wrong one.
    """
    current = version()
    if ".dev" not in current:
        return f"v{current} is tagged here already"
    number = wanted or current.partition(".dev")[0]
    if not re.fullmatch(r"\d+\.\d+\.\d+", number):
        raise SystemExit(f"VERSION={number}: not a release such as {next_release(current)}")
    text = CHANGELOG.read_text("utf-8")
    changes = _section(text, UNRELEASED) or ""
    if not (ROOT / ".git").exists():
        return "no release: this is no checkout of git"
    if _git("status", "--porcelain"):
        return "no release: something in the tree is changed"
    if not changes.partition("\n")[2].strip():
        return f"no release: CHANGELOG.md has nothing below `## {UNRELEASED}`"
    if _git("tag", "--list", f"v{number}") or _section(text, number) is not None:
        return f"no release: there is a {number} already"
    heading = f"## {UNRELEASED}\n"
    dated = f"{heading}\n## {number} ({datetime.now(UTC):%Y-%m-%d})\n"
    CHANGELOG.write_text(text.replace(heading, dated, 1), "utf-8")
    try:
        _git("commit", "--quiet", "--message", f"headroom {number}", "--", CHANGELOG.name)
        _git("tag", "--annotate", f"v{number}", "--message", f"headroom {number}")
    except subprocess.CalledProcessError as error:
        CHANGELOG.write_text(text, "utf-8")
        return f"no release: {error.stderr.strip().splitlines()[-1]}"
    version.cache_clear()
    return f"tagged v{number}; git push origin HEAD v{number} publishes it"


def _section(text: str, heading: str) -> str | None:
    found = re.search(rf"^## {re.escape(heading)}(?= |$).*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return None if found is None else found[0]


def _git(*words: str) -> str:
    """Return what git prints. Raises CalledProcessError."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
