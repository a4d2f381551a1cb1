"""Who hears a stop signal: the process that knows how to stop, and nobody that it starts."""

from __future__ import annotations

import subprocess
import sys

from service.ray.processes import STOP_SIGNALS, deaf_children

SAYS_WHAT_IS_BLOCKED = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
GRANDCHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SAYS_WHAT_IS_BLOCKED!r}])"

SIGNALLED_MEANWHILE = """
import os, signal
from service.ray.processes import deaf_children

heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append("ours"))
with deaf_children():
    signal.signal(signal.SIGTERM, lambda *_: heard.append("Ray's"))
    os.kill(os.getpid(), signal.SIGTERM)
    print(heard)
print(heard)
"""


def test_child_processes_do_not_receive_stop_signals() -> None:
    with deaf_children():
        shown = subprocess.run([sys.executable, "-c", GRANDCHILD], capture_output=True, text=True, check=True)
    assert shown.stdout.count("Signals.SIG") == len(STOP_SIGNALS)
    after = subprocess.run([sys.executable, "-c", GRANDCHILD], capture_output=True, text=True, check=True)
    assert after.stdout == "[]\n"


def test_a_signal_that_comes_meanwhile_reaches_the_handler_from_before() -> None:
    """In a process of its own, with one thread as at the service's start: in another, Ray left threads."""
    shown = subprocess.run([sys.executable, "-c", SIGNALLED_MEANWHILE], capture_output=True, text=True)
    assert shown.stderr == ""
    assert shown.stdout == "[]\n['ours']\n"
