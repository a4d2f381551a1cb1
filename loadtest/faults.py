"""A fault for a scenario's events: sends a signal to processes of the server that the run started.

`python -m loadtest.faults KILL ServeReplica` signals the descendants of $SERVER_PID whose command line has
the word. `python -m loadtest.faults STOP ServeReplica 2s` stops them and continues them two seconds later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from loadtest.plan import seconds


def descendants(root: int) -> dict[int, str]:
    """Return the pid and command line of every descendant of `root`."""
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=2) for line in listing.stdout.splitlines()]
    processes = {int(row[0]): (int(row[1]), row[2] if len(row) > 2 else "") for row in rows}
    commands: dict[int, str] = {}
    level = {root}
    while level:
        level = {pid for pid, (parent, _) in processes.items() if parent in level and pid not in commands}
        commands.update({pid: processes[pid][1] for pid in level})
    return commands


def main(arguments: list[str]) -> int:
    """Send the signal. Exit status 0 if a process got it, 1 if there was none."""
    number = signal.Signals[f"SIG{arguments[0]}"]
    hit = [pid for pid, line in descendants(int(os.environ["SERVER_PID"])).items() if arguments[1] in line]
    for pid in hit:
        os.kill(pid, number)
    if len(arguments) > 2:
        time.sleep(seconds(arguments[2]))
        for pid in hit:
            os.kill(pid, signal.SIGCONT)
    return 0 if hit else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
