"""Downloads the training data from public repositories and prepares it for models.training.shipped.judged.

    python -m models.training.shipped.fetch --out runs/data

Files that are there with the right SHA-256 are not fetched again, so an interrupted run goes on where it
stopped. The raw files (46 MB, kept in OUT/raw) and their licences are listed in public.yaml. Chorus's
product text (Icecat) and the movies (CC BY-SA) are for training only: do not commit them.
"""

import argparse
import gzip
import hashlib
import logging
import sys
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import yaml

from models.errors import ModelError
from models.files import write_whole
from models.training.shipped.sources import prepare

log = logging.getLogger(__name__)

PUBLIC = Path(__file__).with_name("public.yaml")
GITHUB = "https://raw.githubusercontent.com"
TIMEOUT_SECONDS = 30


def read_public() -> dict[str, Any]:
    """Return the committed list: the raw files by repository, and the SHA-256 of each prepared file."""
    public: dict[str, Any] = yaml.safe_load(PUBLIC.read_text(encoding="utf-8"))
    return public


def fetch(public: dict[str, Any], out: Path, *, server: str = GITHUB) -> None:
    """Put into `out` exactly the data that the shipped model was trained on.

    Raises ModelError at the first file that cannot be fetched or that differs. Finished files stay.
    """
    for repository in public["repositories"]:
        for file in repository["files"]:
            path = out / "raw" / repository["source"] / Path(file["path"]).name
            if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != file["sha256"]:
                url = f"{server}/{repository['repository']}/{repository['commit']}/{file['path']}"
                write_whole(path, download(url, file["sha256"]))
                log.info("%s (%s)", url, repository["licence"])
    if differing(public, out):
        log.info("preparing %s", out)
        prepare(out / "raw", out)
    if names := differing(public, out):
        raise ModelError(f"{out}: not what the shipped model was trained on: {', '.join(names)}")


def download(url: str, sha256: str) -> bytes:
    """Return the content of a URL. Raises ModelError if it cannot be read, or has another SHA-256."""
    try:
        with urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            content: bytes = response.read()
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()
        raise ModelError(f"{url}: {error}; the same command goes on with this file") from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ModelError(f"{url}: expected SHA-256 {sha256}, got {found}")
    return content


def differing(public: dict[str, Any], out: Path) -> list[str]:
    """Return the prepared files that are missing or differ."""

    def is_right(name: str, sha256: str) -> bool:
        try:
            return hashlib.sha256(gzip.decompress((out / name).read_bytes())).hexdigest() == sha256
        except (OSError, EOFError, zlib.error):
            return False

    return [name for name, sha256 in public["prepared"].items() if not is_right(name, sha256)]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m models.training.shipped.fetch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/data"), help="default: %(default)s")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        fetch(read_public(), options.out)
    except ModelError as error:
        sys.exit(f"fetch: {error}")
    log.info("%s holds the training data", options.out)


if __name__ == "__main__":
    main()
