"""Faults for a scenario's events. They act on processes and files of the server that the run started.

    python -m benchmarks.soak.faults KILL ServeReplica
        signal processes by a word of their command line
    python -m benchmarks.soak.faults KILL ServeReplica --youngest
        only the one that started last
    python -m benchmarks.soak.faults STOP ServeReplica 2s
        stop them, and continue them two seconds later
    python -m benchmarks.soak.faults EDIT serve.yaml
        edit the config, and wait until it is in force

The processes are descendants of $SERVER_PID; $URL is the server's address.
"""

import contextlib
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from headroom.loadtest import server
from headroom.loadtest.plan import seconds

PROCESS_S = 50.0
"""How long a signal waits for a process that it is for: those of a replica end, and others start."""

IN_FORCE_S = 100.0
SAVE_AGAIN_S = 10.0
"""An edit may be refused while a replica dies; the operator is told to save the file again."""

PREFIX = "soak-"
"""Beginning of the name of the mask that an edit adds in place of the last one."""


def process_tree(root: int) -> list[psutil.Process]:
    """Return the process `root` and its descendants, the oldest first; nothing if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(root)
        return [process, *sorted(process.children(recursive=True), key=psutil.Process.create_time)]
    return []


def send(number: signal.Signals, word: str, *, youngest: bool, wait_s: float | None) -> int:
    """Send the signal; after `wait_s`, continue what was stopped.

    Return 0 if a process got it, 1 if there was none for PROCESS_S.
    """
    deadline = time.monotonic() + PROCESS_S
    hit: list[psutil.Process] = []
    while not hit and time.monotonic() < deadline:
        named = [
            process
            for process in process_tree(int(os.environ["SERVER_PID"]))[1:]
            if word in _command(process)
        ]
        for process in named[-1:] if youngest else named:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                process.send_signal(number)
                hit.append(process)
        time.sleep(0 if hit else 0.5)
    if wait_s is not None:
        time.sleep(wait_s)
        for process in hit:
            with contextlib.suppress(psutil.NoSuchProcess):  # it was replaced meanwhile
                process.send_signal(signal.SIGCONT)
    return 0 if hit else 1


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def edit(path: Path, url: str) -> int:
    """Put another mask into the config; return 0 once the server has it, 1 if it never has."""
    document: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    live = document["applications"][0]["deployments"][0].setdefault("user_config", {})
    name = f"{PREFIX}{secrets.token_hex(4)}"
    others = {key: mask for key, mask in (live.get("masks") or {}).items() if not key.startswith(PREFIX)}
    live["masks"] = {**others, name: "0.0"}
    text = yaml.safe_dump(document)
    began = saved = time.monotonic()
    path.write_text(text, "utf-8")
    while time.monotonic() < began + IN_FORCE_S:
        if name.encode() in (server.fetch(url, "/v1/masks") or b""):
            return 0
        if time.monotonic() > saved + SAVE_AGAIN_S:
            path.write_text(text, "utf-8")
            saved = time.monotonic()
        time.sleep(0.5)
    return 1


def main(arguments: list[str]) -> int:
    """Run the fault that the arguments name."""
    if arguments[0] == "EDIT":
        return edit(Path(arguments[1]), os.environ["URL"])
    youngest = "--youngest" in arguments
    name, word, *wait = [argument for argument in arguments if argument != "--youngest"]
    return send(
        signal.Signals[f"SIG{name}"], word, youngest=youngest, wait_s=seconds(wait[0]) if wait else None
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
