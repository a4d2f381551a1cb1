"""The `headroom` program. The commands are in `program`, which takes a second to import.

Nothing but `main` is here, so that Ctrl-C in that second ends the program as it does later.
"""

import sys

from headroom.models.terminal import EXIT_STATUS, write_what_the_terminal_can
from headroom.service.cli.messages import message_of


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
