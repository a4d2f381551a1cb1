"""The report that a directory holds from an earlier run of `headroom study`."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from models.errors import ModelError
from models.files import read_text

REPORT = "report.json"
PAGES = ("report.md", "report.html")
PLOTS = "plots"
FILES = "files"
"""The key of report.json that lists the other files of the report."""


def check_directory(out: Path, kind: str) -> None:
    """Raise ModelError if `out` is a file, or holds a report of something else than the study `kind`."""
    if out.exists() and not out.is_dir():
        raise ModelError(f"{out} is a file; name a directory with --out")
    if not (out / REPORT).exists():
        return
    earlier = _content(out).get("kind")
    if earlier != kind:
        what = f"the report of `headroom study {earlier}`" if earlier else "another report"
        raise ModelError(f"{out} holds {what}; name another directory, such as --out {out}-{kind}")


def remove_others(out: Path, names: Collection[str]) -> None:
    """Remove the files of the earlier report in `out` that are not among `names`, and no others."""
    if not (out / REPORT).exists():
        return
    listed = _content(out).get(FILES)
    for name in set(map(str, listed if isinstance(listed, list) else ())) - set(names):
        file = out / name
        if file.resolve().is_relative_to(out.resolve()):
            file.unlink(missing_ok=True)


def _content(out: Path) -> dict[str, object]:
    """Return the content of report.json; nothing if it is not a report."""
    try:
        content = json.loads(read_text(out / REPORT))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
