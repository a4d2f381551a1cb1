"""The upgrades that docs/operations.md writes down: its own commands, run by bash on a small repository."""

import os
import re
import sqlite3
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.referees import need

pytestmark = pytest.mark.more

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")
SECTION = PAGE.partition("## Upgrade and roll back\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| [^|]+ \| (`[^|]+`) \| (`[^|]+) \|$", SECTION.partition("```console")[0], re.M)
"""What is typed by hand, and for the systemd unit."""

TOOLS = {
    "make": 'echo "make $*" >> "$LOG"',
    "systemctl": 'echo "systemctl $*" >> "$LOG"',
    "runuser": 'echo "$1 $2 $3 $4" >> "$LOG"; shift 3; exec "$@"',
    "docker": 'echo "VERSION=$VERSION docker $*" >> "$LOG"',
}
"""Programs of the machine that only write down how they were called; `runuser` also runs its command."""


class Machine:
    """Folders in the place of a machine's, with two releases of a small repository.

    By hand, the service is the process `served`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.origin = folder / "origin"
        self.home = folder / "home"
        self.log = folder / "log"
        self.home.mkdir()
        self.log.touch()
        tools = folder / "tools"
        tools.mkdir()
        for name, script in TOOLS.items():
            (tools / name).write_text(f"#!/bin/sh\n{script}\n")
            (tools / name).chmod(0o755)
        named = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        self.environment = os.environ | named | {"HOME": str(self.home), "LOG": str(self.log)}
        self.environment["PATH"] = f"{tools}:{os.environ['PATH']}"
        self.run(f"git init --quiet {self.origin}")
        for release in ("v0.3.0", "v0.4.0"):
            self.write("src/headroom/version.py", f"print('{release[1:]}')\n")
            self.write("deploy/serve.yaml", f"replicas: 1\na: 1\nb: 1\nc: 1\nmodel: {release}\n")
            commit = f"git add . && git commit --quiet --message {release} && git tag {release}"
            self.run(f"cd {self.origin} && {commit}")

    def write(self, file: str, text: str) -> None:
        path = self.origin / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, script: str) -> int:
        """Run a script as somebody would who goes on after a command that fails; return its last status."""
        done = subprocess.run(
            ["bash", "-c", script], env=self.environment, capture_output=True, text=True, cwd=self.folder
        )
        return done.returncode

    def clone(self, checkout: Path) -> None:
        """Clone the repository, at its first release."""
        checkout.parent.mkdir(parents=True)
        first = f"git -C {checkout} checkout --quiet v0.3.0"
        assert self.run(f"git clone --quiet file://{self.origin} {checkout} && {first}") == 0

    def head(self, checkout: Path) -> str:
        done = subprocess.run(
            ["git", "-C", checkout, "describe", "--tags"], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    need("sqlite3")
    return Machine(tmp_path)


def steps(machine: Machine, *, unit: bool, release: str, pid: int = 0) -> str:
    """The documented commands up to the checkout, for one of the table's columns, for its folders."""
    (block,) = re.findall(r"^```console\n(.*?)```", SECTION, re.M | re.S)
    commands = re.sub(r"^\$ ", "", block.partition("$ .venv/bin/headroom")[0], flags=re.M)
    if unit:
        for by_hand, of_unit in sorted(ROWS, key=lambda row: -len(row[0])):  # one path begins another
            commands = commands.replace(by_hand.strip("`"), of_unit.split("`")[1])
    for top in ("/srv", "/opt", "/etc", "/var"):
        commands = re.sub(rf"(?<=\s){top}/", f"{machine.folder}{top}/", commands)
    return commands.replace("vX.Y.Z", release).replace("PID", str(pid))


@pytest.mark.parametrize(("unit", "has_database"), [(False, False), (True, True)])
def test_an_upgrade_comes_to_the_release_and_makes_no_database_where_there_is_none(
    unit: bool, has_database: bool, machine: Machine
) -> None:
    """SQLite makes a file that is missing. Made by root, the service could never write to it."""
    checkout = machine.folder / ("opt/headroom" if unit else "srv/headroom")
    machine.clone(checkout)
    config = machine.folder / ("etc/headroom/serve.yaml" if unit else "srv/headroom.yaml")
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("mine")
    state = machine.folder / "var/lib/headroom" if unit else machine.home / ".local/state/headroom"
    state.mkdir(parents=True)
    if has_database:
        with sqlite3.connect(state / "experiments.db") as connection:
            connection.execute("CREATE TABLE t AS SELECT 7 AS x")
        connection.close()
    before = {path.name: path.stat().st_size for path in state.iterdir()}
    with subprocess.Popen(["sleep", "600"]) as served, ExitStack() as stack:
        stack.callback(served.kill)
        machine.run(steps(machine, unit=unit, release="v9.9.9", pid=served.pid))
        assert served.poll() is None, "stopped before it was known that there is such a release"
        assert "systemctl" not in machine.log.read_text()
        assert machine.head(checkout) == "v0.3.0"
        assert machine.run(steps(machine, unit=unit, release="v0.4.0", pid=served.pid)) == 0
    assert machine.head(checkout) == "v0.4.0"
    assert (checkout.parent / "headroom.before.yaml").read_text() == "mine"
    log = machine.log.read_text()
    assert ("systemctl stop headroom\n" in log) == unit
    assert ("-u headroom -- sqlite3\n" in log) == has_database
    after = {path.name: path.stat().st_size for path in state.iterdir()}
    if not has_database:
        assert after == before
        return
    copy = state / "before.db"
    assert after.keys() == before.keys() | {copy.name}
    assert copy.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(copy) as connection:
        assert connection.execute("SELECT x FROM t").fetchall() == [(7,)]
    connection.close()


@pytest.mark.parametrize(("edit", "merges"), [("replicas: 9\n", True), ("model: mine\n", False)])
def test_an_upgrade_of_compose_keeps_what_was_edited_and_does_not_start_with_a_conflict(
    edit: str, merges: bool, machine: Machine
) -> None:
    checkout = machine.folder / "compose" / "headroom"
    machine.clone(checkout)
    config = checkout / "deploy" / "serve.yaml"
    name = edit.partition(":")[0]
    config.write_text(re.sub(rf"^{name}: .*\n", edit, config.read_text(), flags=re.M))
    ((update, start),) = re.findall(r"^\| Compose \| `(.*?)`.*?`(.*?)` \|", SECTION, re.M)
    done = machine.run(f"cd {checkout} && {update} && {start}".replace("vX.Y.Z", "v0.4.0"))
    assert (done == 0) == merges
    assert edit in config.read_text()
    started = machine.log.read_text()
    if merges:
        assert "model: v0.4.0\n" in config.read_text()
        assert started.startswith("VERSION=0.4.0 docker compose ")
        # Else Prometheus keeps the files that git has replaced: each is mounted by itself.
        assert " --force-recreate" in started
    else:
        assert started == ""
