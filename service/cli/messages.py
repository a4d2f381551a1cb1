"""What the program says about errors."""

from headroom.models.errors import one_line
from headroom.service.cli import server_packages


def message_of(error: Exception) -> str:
    """Return what the program says about an error, in one line."""
    if server_packages.is_missing(error):
        return server_packages.how_to_get_them()
    message: object = error
    if isinstance(error, OSError) and error.filename and error.strerror:
        message = f"{error.filename}: {error.strerror}"  # without "[Errno 21]"
    return one_line(message)
