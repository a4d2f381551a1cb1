"""The packages of the extra `serve`, without which `headroom` scores, trains, studies and prunes."""

import sys

from headroom.models.errors import how_to_install

SERVER_PACKAGES = frozenset(
    "fastapi fastapi_swagger hdrh httptools prometheus_client ray sqlalchemy starlette uvloop".split()
)
"""The names by which they are imported."""


def is_missing(error: Exception) -> bool:
    """Return whether an import failed because a package of the extra `serve` is not installed."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in SERVER_PACKAGES


def how_to_get_them() -> str:
    """Return the sentence that names the running command and says how to install these packages."""
    command = " ".join(["headroom", *sys.argv[1:2]])
    return f"`{command}` needs the server's packages: {how_to_install('serve')}"
