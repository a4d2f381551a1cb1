"""One sentence for each way in which a download from the hub can fail: what is wrong, and what to do.

No sentence shows a token, nor an address, which may hold a password.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ADDRESS = re.compile(r"\b\w+://\S+")


@dataclass(frozen=True, slots=True)
class Target:
    """A repository of the hub at a revision (None: the main branch)."""

    name: str
    revision: str | None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    @property
    def host(self) -> str:
        """The host of the hub that is asked, as a person would name it."""
        address = urlsplit(constants.ENDPOINT)
        return address.netloc.rpartition("@")[2] or constants.ENDPOINT

    @property
    def page(self) -> str:
        """The repository's page."""
        return f"{urlsplit(constants.ENDPOINT).scheme or 'https'}://{self.host}/{self.name}"


def problem_of(error: BaseException, target: Target) -> str:
    """Return one sentence about an error of the hub's client."""
    while isinstance(error, LocalEntryNotFoundError | FileMetadataError) and error.__cause__ is not None:
        error = error.__cause__  # the client wraps what happened in a page of advice
    if isinstance(error, HfHubHTTPError):
        return _http_problem(error, target)
    if isinstance(error, OfflineModeIsEnabled | LocalEntryNotFoundError):
        return (
            f"{target} is not whole in the cache ({constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE is set; "
            "unset it once for the download, or set HF_HUB_CACHE to a cache that holds the model"
        )
    if isinstance(error, HFValidationError):
        return (
            f"{target} is neither a directory nor a name of the hub (organization/model, or with @revision)"
        )
    if isinstance(error, httpx2.HTTPError | httpx2.InvalidURL):
        return _network_problem(error, target)
    if type(error).__module__ == "hf_xet" or isinstance(error, ConnectionError | TimeoutError | RuntimeError):
        # The hub's newer storage, whose client has errors of its own.
        return f"{target}: the download failed ({_first_line(error)}); try again, or set HF_HUB_DISABLE_XET=1"
    if isinstance(error, OSError) and error.errno in _FULL:
        return (
            f"the disk of {constants.HF_HUB_CACHE} is full; free some space for {target}, or set "
            "HF_HUB_CACHE to a directory on another disk"
        )
    if isinstance(error, OSError) and error.errno is not None:
        return (
            f"{target} cannot be written to the cache {constants.HF_HUB_CACHE}: {error.strerror}; set "
            "HF_HUB_CACHE to a directory that you may write"
        )
    if isinstance(error, OSError) and "Consistency check" in str(error):
        return (
            f"{target}: a file arrived broken (it has not the size that {target.host} announced); try again"
        )
    if isinstance(error, FileMetadataError | ValueError | KeyError | TypeError | AssertionError):
        return f"{target.host} does not answer as a hub does; check HF_ENDPOINT and the proxy"
    return f"{target} cannot be downloaded from {target.host}: {_first_line(error)}"


def _http_problem(error: HfHubHTTPError, target: Target) -> str:
    """Return the sentence about an answer of the hub that is no success."""
    has_token, status = get_token() is not None, error.response.status_code
    if isinstance(error, GatedRepoError):
        if has_token:
            return f"{target} is gated, and your token's account has no access; ask for it at {target.page}"
        hint = "then set HF_TOKEN to a token of that account"
        return f"{target} is gated; ask for access at {target.page}, {hint}"
    if isinstance(error, RevisionNotFoundError):
        return f"{target.name} has no branch, tag or commit {target.revision!r}; see {target.page}/tree/main"
    if isinstance(error, EntryNotFoundError):
        return f"{target}: {target.host} lists a file that it does not have; try again later"
    if isinstance(error, DisabledRepoError):
        return f"{target} is disabled at {target.host}; choose another model"
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        if has_token:
            hint = "that your token may read; check the name and the token's rights"
        else:
            hint = "that is public; check the name, or set HF_TOKEN for a private model"
        return f"there is no directory {target}, and {target.host} has no model of this name {hint}"
    if status == 401:
        return f"{target.host} does not accept your token for {target}; set HF_TOKEN to a valid one"
    if status == 403:
        return f"{target.host} forbids your token to read {target}; set HF_TOKEN to one that may read it"
    if status == 429:
        hint = "" if has_token else ", or set HF_TOKEN, which allows more"
        return f"{target.host} refuses {target}: too many requests (429); try again in some minutes{hint}"
    return f"{target.host} answers with status {status} to a request for {target}; try again later"


def _network_problem(error: httpx2.HTTPError | httpx2.InvalidURL, target: Target) -> str:
    """Return the sentence about a request that got no answer."""
    if isinstance(error, httpx2.ProxyError):
        return f"{target} cannot be downloaded: the proxy refuses ({_first_line(error)}); check HTTPS_PROXY"
    if isinstance(error, httpx2.UnsupportedProtocol | httpx2.InvalidURL):
        return "HF_ENDPOINT is not the address of a hub; it must begin with https:// or http://"
    if isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError | httpx2.DecodingError):
        return f"{target}: the connection to {target.host} broke ({_first_line(error)}); try again"
    reason = "no answer in time" if isinstance(error, httpx2.TimeoutException) else _first_line(error)
    return (
        f"there is no directory {target}, and {target.host} cannot be reached ({reason}); check the network, "
        "HF_ENDPOINT and HTTPS_PROXY"
    )


def size_text(size: int) -> str:
    """Return a number of bytes as people read it, such as 1.1 GB."""
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6)):
        if size >= bytes_:
            return f"{size / bytes_:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without addresses and the token."""
    text = str(error).strip()
    line = _ADDRESS.sub("an address", text.splitlines()[0]) if text else type(error).__name__
    token = get_token()
    return line if token is None else line.replace(token, "…")
