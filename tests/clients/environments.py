"""Runs other people's clients, each in an environment of its own, against a running service.

`make clients` (`python -m tests.clients.environments [NAME …]`) makes `.venv-clients/NAME` from the part NAME
of `requirements.txt`. A script of `scripts/` runs there and prints what its clients returned or raised as
JSON; the tests judge it here.
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-clients"
SECONDS = 240
"""The longest that all the clients of one environment may take, imports included."""


def requirements() -> dict[str, str]:
    """What pip installs, by environment."""
    text = (HERE / "requirements.txt").read_text("utf-8")
    return dict(re.findall(r"^== (\w+)\n(.*?)(?=^== |\Z)", text, re.MULTILINE | re.DOTALL))


def install(*names: str) -> None:
    """Make each environment that is missing or not up to date, two at a time. names: these only, if any."""
    wanted = {name: packages for name, packages in requirements().items() if not names or name in names}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(install_one, wanted, wanted.values()))


def install_one(name: str, wanted: str) -> None:
    """Make an environment with these packages, unless it is there."""
    directory = ENVIRONMENTS / name
    installed = directory / "installed.txt"
    if installed.exists() and installed.read_text("utf-8") == wanted:
        return
    print(f"Installing the clients of {name} into {directory}; this may take a minute.", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    unfinished = directory / "requirements.txt"
    unfinished.write_text(wanted, "utf-8")
    # helm-sdkpy, which judges the chart, asks for a newer Python than it needs.
    loose = ["--ignore-requires-python"] if name == "deploy" else []
    # Most of what is installed is never imported: not to compile it halves the time.
    quiet = ["--disable-pip-version-check", "--progress-bar", "off", "--quiet", "--no-compile"]
    pip = [sys.executable, "-m", "pip", "--python", directory / "bin" / "python"]
    subprocess.run([*pip, "install", *quiet, *loose, "--requirement", unfinished], check=True)
    unfinished.rename(installed)


def python(name: str) -> Path:
    """The interpreter of an environment. Raises SystemExit if it is missing or not up to date."""
    installed = ENVIRONMENTS / name / "installed.txt"
    if not installed.exists() or installed.read_text("utf-8") != requirements()[name]:
        raise SystemExit(f"the clients' environment {name} is missing or not up to date; run: make clients")
    return ENVIRONMENTS / name / "bin" / "python"


def run(name: str, script: str, **arguments: Any) -> dict[str, Any]:
    """Run `scripts/SCRIPT` in an environment and return the JSON that it printed.

    arguments: what the script gets as `harness.ARGUMENTS`.
    """
    # Nothing of this process's own packages, and no keys or proxies of the machine.
    environment = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR", "LANG") if key in os.environ}
    done = subprocess.run(
        [python(name), HERE / "scripts" / script],
        env=environment | {"ARGUMENTS": json.dumps(arguments)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    install(*sys.argv[1:])
