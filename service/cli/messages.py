"""Turns errors into lines for the user, missing packages of the extra `serve` among them.

Without that extra `headroom` scores, trains, studies and prunes.
"""

import sys

from headroom.models.errors import how_to_install, one_line

SERVER_PACKAGES = frozenset(
    "fastapi fastapi_swagger hdrh httptools prometheus_client ray sqlalchemy starlette uvloop".split()
)
"""The names by which they are imported."""


def message_of(error: Exception) -> str:
    """Return what the program says about an error, in one line."""
    missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    if missing.partition(".")[0] in SERVER_PACKAGES:
        command = " ".join(["headroom", *sys.argv[1:2]])
        return f"`{command}` needs the server's packages: {how_to_install('serve')}"
    message: object = error
    if isinstance(error, OSError) and error.filename and error.strerror:
        message = f"{error.filename}: {error.strerror}"  # without "[Errno 21]"
    return one_line(message)
