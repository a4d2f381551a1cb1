"""The `headroom` program. The commands are in `program`, which takes a second to import.

Nothing but `main` is here, so that Ctrl-C in that second ends the program as it does later.
"""

import sys

from headroom.models.errors import one_line
from headroom.models.terminal import EXIT_STATUS, write_what_the_terminal_can


def main() -> None:
    """Run the program.

    Exit status: 0 for success, 1 for failure (one line on stderr), 2 for wrong usage, 130 after Ctrl-C.
    """
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if debug:
        arguments.remove("--debug")
    try:
        from headroom.service.cli.program import app

        write_what_the_terminal_can()

        app(arguments, prog_name="headroom")
    except KeyboardInterrupt:
        sys.exit(EXIT_STATUS)
    except Exception as error:
        if debug:
            raise
        print(f"headroom: {message_of(error)}", file=sys.stderr)
        sys.exit(1)


def message_of(error: Exception) -> str:
    """Return what the program says about an error, in one line."""
    message: object = error
    if isinstance(error, OSError) and error.filename and error.strerror:
        message = f"{error.filename}: {error.strerror}"  # without "[Errno 21]"
    return one_line(message)
