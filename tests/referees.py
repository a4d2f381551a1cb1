"""Programs that tests use and pip does not install: other load generators, a database, a compiler, a browser.

`make test-all` begins with `python -m tests.referees`, which installs what is missing with apt-get, as root
or through a sudo that asks for no password. Where it can do neither it says what to run, and the tests that
need a missing program are skipped with the same command as the reason. With CI in the environment, a
missing program is a failure.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_POSTGRESQL = Path("/usr/lib/postgresql")  # Debian keeps its programs here, out of PATH


@dataclass(frozen=True)
class Program:
    """What a program may be called, for which tests it is, and the packages that hold it."""

    names: tuple[str, ...]
    purpose: str
    apt: str
    brew: str

    def find(self) -> str | None:
        """Its path, or None."""
        for name in self.names:
            if (path := shutil.which(name)) is not None:
                return path
            for program in sorted(_POSTGRESQL.glob(f"*/bin/{name}")):
                return str(program)
        return None


_CHROME_ON_MACOS = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
PROGRAMS = {
    "hey": Program(("hey",), "the load generator's tests", "hey", "hey"),
    "initdb": Program(("initdb",), "experiments on PostgreSQL", "postgresql", "postgresql"),
    "postgres": Program(("postgres",), "experiments on PostgreSQL", "postgresql", "postgresql"),
    "redis-server": Program(
        ("redis-server", "valkey-server"), "a Ray head that dies", "redis-server", "redis"
    ),
    "promtool": Program(("promtool",), "the alerts' tests", "prometheus", "prometheus"),
    "prometheus": Program(("prometheus",), "the dashboard's test", "prometheus", "prometheus"),
    "sqlite3": Program(("sqlite3",), "the documented upgrades", "sqlite3", "sqlite"),
    "systemd-analyze": Program(("systemd-analyze",), "the systemd unit's test", "systemd", ""),
    "dpkg-query": Program(("dpkg-query",), "the notices' test", "dpkg", ""),
    "g++": Program(("g++",), "the compiled kernels", "g++", ""),
    "aarch64-linux-gnu-g++": Program(
        ("aarch64-linux-gnu-g++",), "the kernels for ARM", "g++-aarch64-linux-gnu", ""
    ),
    "qemu-aarch64": Program(("qemu-aarch64",), "the kernels for ARM", "qemu-user", ""),
    "podman": Program(("podman",), "`make images` without Docker", "podman", ""),
    "runc": Program(("runc",), "`make images` without Docker", "runc", ""),
    "mmdebstrap": Program(("mmdebstrap",), "`make images` without Docker", "mmdebstrap", ""),
    "chromium": Program(
        ("chromium", "chromium-browser", "google-chrome", _CHROME_ON_MACOS),
        "the browser test",
        "chromium",
        "--cask google-chrome",
    ),
    "chromedriver": Program(("chromedriver",), "the browser test", "chromium-driver", "chromedriver"),
}


def need(name: str) -> str:
    """The program's path. Without it the running test is skipped, or fails where CI is set."""
    import pytest

    path = PROGRAMS[name].find()
    if path is None:
        reason = f"{name} is missing; run: {command([PROGRAMS[name]])}"
        if in_ci():
            pytest.fail(f"{reason} (CI is set, so that nothing is skipped)", pytrace=False)
        pytest.skip(reason)
    return path


def in_ci() -> bool:
    """Whether CI is in the environment, as every CI service sets it."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def command(programs: list[Program]) -> str:
    """What a person runs to get these programs."""
    if sys.platform == "darwin":
        return " && ".join(f"brew install {name}" for name in dict.fromkeys(p.brew for p in programs) if name)
    return f"sudo apt-get install -y {' '.join(_packages(programs))}"


def main() -> int:
    """Install what is missing. Returns the exit status: 1 if CI is set and something stays missing."""
    missing = _missing()
    packages = " ".join(_packages(missing)) or "none"
    print(
        f"make test-all installs system packages: {packages}; pip's and npm's in this checkout",
        file=sys.stderr,
    )
    if missing:
        _install(missing)
    if not (missing := _missing()):
        return 0
    print(f"missing programs: run `{command(missing)}`", file=sys.stderr)
    for purpose in dict.fromkeys(program.purpose for program in missing):
        verdict = "cannot run" if in_ci() else "will be skipped"
        print(f"  {purpose}: {verdict} without {_names(missing, purpose)}", file=sys.stderr)
    return 1 if in_ci() else 0


def _missing() -> list[Program]:
    return [program for program in PROGRAMS.values() if program.find() is None]


def _names(programs: list[Program], purpose: str) -> str:
    return ", ".join(program.names[0] for program in programs if program.purpose == purpose)


def _packages(programs: list[Program]) -> list[str]:
    return list(dict.fromkeys(program.apt for program in programs))


def _install(missing: list[Program]) -> None:
    """Try apt-get, one package after the other: another distribution may lack one of them."""
    if shutil.which("apt-get") is None:
        return
    root: list[str] = []
    if os.geteuid() != 0:
        root = ["sudo", "-n"]
        if shutil.which("sudo") is None or subprocess.run([*root, "true"], capture_output=True).returncode:
            return
    packages = _packages(missing)
    print(f"installing with apt-get: {' '.join(packages)}", file=sys.stderr, flush=True)
    apt = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    subprocess.run([*apt, "update"], stdout=subprocess.DEVNULL, check=False)
    for package in packages:
        subprocess.run([*apt, "install", "-y", package], stdout=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    sys.exit(main())
