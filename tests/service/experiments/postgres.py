"""A PostgreSQL of its own for the tests: made by initdb, reached by a Unix socket, gone afterwards."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from tests.referees import need


class Cluster:
    """A throw-away cluster in a directory of its own. Root starts it as the user postgres."""

    def __init__(self) -> None:
        need("initdb")
        self.directory = Path(tempfile.mkdtemp(prefix="pg"))  # short: a socket's path has 107 characters
        self.user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        if os.geteuid() == 0:
            shutil.chown(self.directory, "postgres", "postgres")
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "--auth=trust", "--username=postgres", "--no-sync", "--locale=C.UTF-8")
        self.start()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self.directory}"

    def create(self, database: str) -> str:
        """An empty database; returns its URL."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}"')
        return self.url(database)

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        command = [need("postgres"), "-D", str(self.directory / "data"), "-k", str(self.directory)]
        command += ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB"]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, user=self._run_as, cwd=self.directory
            )
        deadline = time.monotonic() + 120
        while True:
            try:
                psycopg.connect(self.url()).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.directory / "log").read_text()) from None
                time.sleep(0.02)

    def stop(self) -> None:
        """Stops the server at once; connections break."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(120)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory)

    @property
    def _run_as(self) -> str | None:
        return "postgres" if os.geteuid() == 0 else None

    def _run(self, program: str, *arguments: str) -> None:
        command = [need(program), "-D", str(self.directory / "data"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, user=self._run_as, cwd=self.directory)
        assert done.returncode == 0, done.stderr
