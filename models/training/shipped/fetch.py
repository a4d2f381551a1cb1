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
import time
import zlib
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import yaml
from pydantic import BaseModel, ConfigDict, Field

from models.errors import ModelError
from models.training.shipped.sources import prepare, write_whole

log = logging.getLogger(__name__)

PUBLIC = Path(__file__).with_name("public.yaml")
GITHUB = "https://raw.githubusercontent.com"
TIMEOUT_SECONDS = 30
PAUSES_SECONDS = (1, 4, 15)  # before the second, third and fourth attempt


class FetchFailed(ModelError):
    """A raw file cannot be fetched unchanged, or the prepared data differ from the list."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RawFile(_Row):
    """A file of a repository."""

    path: str
    size_bytes: int
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Repository(_Row):
    """Files of one public repository at one commit; `source` is the folder they are kept in."""

    source: str
    repository: str
    commit: str = Field(pattern="^[0-9a-f]{40}$")
    licence: str
    files: tuple[RawFile, ...]


class Public(_Row):
    """The content of public.yaml: where the raw files are, and the SHA-256 of each prepared file."""

    repositories: tuple[Repository, ...]
    prepared: dict[str, str]


def read_public(path: Path = PUBLIC) -> Public:
    """Read the committed list of raw and prepared files."""
    return Public.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def fetch(
    public: Public, out: Path, *, server: str = GITHUB, pauses: Sequence[float] = PAUSES_SECONDS
) -> None:
    """Put into `out` exactly the data that the shipped model was trained on.

    Raises FetchFailed at the first file that cannot be fetched or that differs. Finished files stay.
    """
    download_all(public, out / "raw", server=server, pauses=pauses)
    if differing(public, out):
        log.info("preparing %s", out)
        prepare(out / "raw", out)
    if names := differing(public, out):
        raise FetchFailed(f"{out}: not what the shipped model was trained on: {', '.join(names)}")


def download_all(public: Public, raw: Path, *, server: str, pauses: Sequence[float]) -> None:
    """Download missing files to raw/SOURCE/NAME. Raises FetchFailed at the first failure."""
    for repository in public.repositories:
        for file in repository.files:
            path = raw / repository.source / Path(file.path).name
            if path.exists() and difference(path.read_bytes(), file) is None:
                continue
            url = f"{server}/{repository.repository}/{repository.commit}/{file.path}"
            content = download(url, pauses)
            if wrong := difference(content, file):
                raise FetchFailed(f"{url}: {wrong}")
            write_whole(path, content)
            log.info("%s: %d bytes, %s", url, len(content), repository.licence)


def download(url: str, pauses: Sequence[float]) -> bytes:
    """Return the content of a URL; retry after each pause (seconds) if the failure may be temporary."""
    try:
        return _read(url)
    except (OSError, HTTPException) as error:
        refused = isinstance(error, HTTPError) and error.code < 500 and error.code != 429
        if refused or not pauses:
            raise FetchFailed(f"{url}: {error}") from error
        log.info("%s: %s; again in %g s", url, error, pauses[0])
    time.sleep(pauses[0])
    return download(url, pauses[1:])


def _read(url: str) -> bytes:
    try:
        with urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            content: bytes = response.read()
            return content
    except HTTPError as error:
        error.close()
        raise


def difference(content: bytes, file: RawFile) -> str | None:
    """Return how the content differs from the list; None if it does not."""
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 == file.sha256 and len(content) == file.size_bytes:
        return None
    expected = f"{file.size_bytes} bytes with SHA-256 {file.sha256}"
    return f"expected {expected}, got {len(content)} bytes with SHA-256 {sha256}"


def differing(public: Public, out: Path) -> list[str]:
    """Return the prepared files that are missing or differ."""
    return [name for name, sha256 in public.prepared.items() if _unpacked_sha256(out / name) != sha256]


def _unpacked_sha256(path: Path) -> str | None:
    """Return the SHA-256 of the unpacked file; None if it is missing or incomplete."""
    try:
        return hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()
    except (OSError, EOFError, zlib.error):
        return None


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
    except FetchFailed as error:
        sys.exit(f"fetch: {error}")
    log.info("%s holds the training data", options.out)


if __name__ == "__main__":
    main()
