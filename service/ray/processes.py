"""The processes of a run: which get a stop signal, which are killed, and what ends the run when Ray has died.

A call into a dead Ray may block for ever, and Ray does not start its own programs again. So a thread looks at
them, whatever the other threads wait for.
"""

import contextlib
import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import Future
from types import FrameType
from typing import Any, TypeVar

import psutil

from headroom.service.ray.run_directory import RunDirectory

T = TypeVar("T")

VITAL = frozenset(("raylet", "gcs_server", "ray::DashboardAgent", "ray::RuntimeEnvAgent"))
"""Names of the processes without which Ray cannot go on. It starts none of them again."""

STARTED_AGAIN = "_HEADROOM_STARTED_AGAIN"
"""Variable of a program that `start_again` has put in its own place."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The last one comes when a terminal closes."""
LOOK_S = 0.5
END_S = 2.0
"""How long `kill_process_tree` waits for the processes that it has killed to end."""


def run_in_thread(call: Callable[..., T], *arguments: Any, **options: Any) -> Future[T]:
    """Run a call that may block for ever in a thread, which does not keep the process from ending."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call(*arguments, **options))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, so that they stay `descendants`."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)


def descendants() -> list[psutil.Process]:
    """Return all descendants of this process."""
    return psutil.Process().children(recursive=True)


def descendants_named(names: Container[str]) -> dict[psutil.Process, str]:
    """Return the descendants of this process that have one of these names."""
    names_found = {}
    for process in descendants():
        with contextlib.suppress(psutil.Error):  # it has ended
            if process.name() in names:
                names_found[process] = process.name()
    return names_found


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process runs no more."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def kill_process_tree() -> None:
    """Kill all descendants of this process and wait until they have ended.

    Meanwhile nothing reaches standard error: Ray's library in this process writes there what it has lost.
    """
    err = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        processes = descendants()
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=END_S)
    finally:
        os.dup2(err, 2)
        os.close(nowhere)
        os.close(err)


class StopSignal:
    """Handles STOP_SIGNALS: the first asks to stop, the second stops at once.

    before_end: is called before the second one ends all processes.
    """

    def __init__(self) -> None:
        self.before_end: Callable[[], None] = lambda: None
        self._event = threading.Event()
        self.is_set = self._event.is_set
        self.wait = self._event.wait

    def install(self) -> None:
        """Begin. A SIGHUP that is ignored stays so: that is what nohup is for."""
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._event.is_set():
            self.before_end()
            kill_process_tree()
            os._exit(130)
        self._event.set()


@contextlib.contextmanager
def ignoring_signals_in_children() -> Iterator[None]:
    """Block STOP_SIGNALS for the processes started in this block, and for all that these start.

    A terminal and systemd send a signal to every process of a run at once, but only this process knows which
    must end last. Child processes inherit the signal mask, even through `exec`. Ray's programs install
    handlers but do not unblock the signals (HAProxy does, see haproxy.py). A signal to this process is
    delivered at the end of the block, to the handler from before it, although Ray installs its own meanwhile.
    """
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


class Watchdog:
    """Watches the processes that Ray cannot do without. Make it before Ray starts.

    Args:
        end: called with the reason, in one sentence, when this process must end; it must not return.
        is_stopping: whether the process was asked to stop.
        stop_s: how long a stop may take.
    """

    def __init__(self, end: Callable[[str], object], is_stopping: Callable[[], bool], stop_s: float) -> None:
        self._end = end
        self._is_stopping = is_stopping
        self._stop_s = stop_s
        self._vital: dict[psutil.Process, str] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching, before Ray is ended on purpose. A signal handler may call it; it never waits."""
        self._closed.set()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # they are for the main thread
        stopping_since = math.inf
        while not self._closed.wait(LOOK_S):
            if self._is_stopping():
                stopping_since = min(stopping_since, time.monotonic())
            if len(self._vital) < len(VITAL):
                self._vital |= descendants_named(VITAL)
            ended = sorted(name for process, name in self._vital.items() if has_ended(process))
            if self._closed.is_set():  # what has ended may have been killed after `close`
                return
            if ended:
                self._end(f"{' and '.join(ended)} ended, and Ray cannot go on without it")
            if time.monotonic() - stopping_since > self._stop_s:
                self._end(f"the stop has taken more than {self._stop_s:g} s")


def end_run(directory: RunDirectory, reason: str, say: Callable[[str], None]) -> None:
    """Say why, and end every process of this run at once, this one too. Its directory stays for its logs.

    say: shows a line to the operator, and raises nothing.
    """
    _end_others(directory, f"{reason}; ending all processes", say)
    os._exit(1)


def start_again(
    directory: RunDirectory, reason: str, variables: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Say why, end every other process of this run, and run this program anew in this process.

    For a start that failed by no fault of the config: where no core is free, Ray's raylet ends because it
    waits for Ray's agents for 15 seconds only, which no variable changes
    (https://github.com/ray-project/ray/issues/65983). It helps once; the second time this is `end_run`.

    The command line may hold relative paths, and Ray starts in another working directory.

    variables: the environment that this process was started with.
    say: shows a line to the operator, and raises nothing.
    """
    if STARTED_AGAIN in variables:
        end_run(directory, reason, say)
    _end_others(directory, f"{reason}; starting again", say)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # the new program inherits this thread's mask
    try:
        os.chdir(directory.started_in)
        os.execve(sys.executable, sys.orig_argv, {**variables, STARTED_AGAIN: "1"})
    except OSError as error:
        end_run(directory, f"another start failed: {error}", say)


def _end_others(directory: RunDirectory, what: str, say: Callable[[str], None]) -> None:
    """Say what happens, kill all descendants of this process, and keep the logs."""
    say(f"{what} (Ray's logs are in {directory.logs})")
    kill_process_tree()
    with contextlib.suppress(OSError):  # the disk is full
        directory.keep_logs()
