"""The work directory of a build, which belongs to one recipe and one set of data."""

import hashlib
import json
from pathlib import Path
from typing import Any

from models.checkpoint.digest import digest_of
from models.errors import ModelError
from models.training.demo.catalogue import THINGS
from models.training.demo.recipe import Recipe

MARK = "made_from.json"


def claim(work: Path, recipe: Recipe, data: Path) -> None:
    """Make the work directory and note in it what its state is made from.

    Raises ModelError if it holds the state of another recipe or of other data: a stage that has finished
    there is not run again, so that its weights would be taken for this recipe's.
    """
    work.mkdir(parents=True, exist_ok=True)
    mark = {"recipe": recipe.model_dump(mode="json"), "sha256": _digests(recipe, data)}
    if not any(work.iterdir()):
        (work / MARK).write_text(json.dumps(mark, indent=1), encoding="utf-8")
        return
    before = _read(work / MARK)
    if before.get("recipe") != mark["recipe"]:
        raise ModelError(f"{work} holds the state of another recipe; give another --work, or remove it")
    differing = {name for name, _ in before["sha256"].items() ^ mark["sha256"].items()}
    if differing:
        raise ModelError(
            f"{', '.join(sorted(differing))} changed since {work} was begun; restore the data, give another "
            "--work, or remove it"
        )


def _digests(recipe: Recipe, data: Path) -> dict[str, str]:
    """Return the SHA-256 of the data's files, of the catalogue's, and of the checkpoint to begin with."""
    digests = {}
    files = [(path, data) for path in (*data.glob("*.gz"), *data.glob("*/*.gz"))]
    for path, root in (*files, *((path, THINGS.parent) for path in THINGS.glob("*.yaml"))):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        digests[path.relative_to(root).as_posix()] = digest.hexdigest()
    if recipe.begins_from is not None:
        digests[str(recipe.begins_from)] = digest_of(recipe.begins_from)
    return digests


def _read(file: Path) -> dict[str, Any]:
    """Return a mark; an empty one if it is missing or damaged."""
    try:
        mark: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return mark
