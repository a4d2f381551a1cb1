"""service.ray.run_directory: ended runs leave nothing behind, running ones are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from service.ray.run_directory import RunDirectory, sweep

RUN = """
import sys, pathlib
from service.ray.run_directory import RunDirectory
directory = RunDirectory(pathlib.Path(sys.argv[1]))
(directory.path / "ray").mkdir()
(directory.path / "ray" / "log").write_text("a log")
(directory.path / "latest").symlink_to("ray")
print(directory.path, flush=True)
sys.stdin.read()
"""


def start(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """Another process with a run of its own, and the run's directory."""
    command = [sys.executable, "-c", RUN, str(parent)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_directory_of_a_killed_run_is_removed_by_the_next_and_that_of_a_live_one_stays(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("")
    foreign = tmp_path / "headroom-metrics"  # no run's
    foreign.mkdir()
    (tmp_path / "headroom-link").symlink_to(foreign)
    killed, of_killed = start(tmp_path)
    alive, of_alive = start(tmp_path)
    try:
        (of_killed / "outside").symlink_to(kept)
        sweep(tmp_path)
        assert of_killed.exists()
        killed.kill()
        killed.wait()
        mine = RunDirectory(tmp_path)
        assert not of_killed.exists()
        assert (of_alive / "ray" / "log").read_text() == "a log"
        mine.remove()
        assert {*tmp_path.iterdir()} == {kept, foreign, tmp_path / "headroom-link", of_alive}
    finally:
        for process in (killed, alive):
            process.kill()
            process.communicate()


def test_the_logs_of_the_last_start_that_failed_are_kept(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path)
    first.keep_logs()
    os.utime(first.path / "failed", (1, 1))
    second = RunDirectory(tmp_path)
    assert first.path.exists()
    second.keep_logs()
    sweep(tmp_path)
    assert (first.path.exists(), second.path.exists()) == (False, True)


def test_a_run_directory_is_for_its_owner_only(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert directory.path.stat().st_mode & 0o777 == 0o700
    directory.remove()
