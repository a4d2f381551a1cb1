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
    """Make each environment that is missing or not up to date; of `names` only, if there are any."""
    for name, wanted in requirements().items():
        if names and name not in names:
            continue
        directory, installed = ENVIRONMENTS / name, ENVIRONMENTS / name / "installed.txt"
        if installed.exists() and installed.read_text("utf-8") == wanted:
            continue
        print(f"Installing the clients of {name} into {directory}; this may take a minute.", flush=True)
        pip = directory / "bin" / "pip"
        if not pip.exists():
            subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        unfinished = directory / "requirements.txt"
        unfinished.write_text(wanted, "utf-8")
        # helm-sdkpy, which judges the chart, asks for a newer Python than it needs.
        loose = ["--ignore-requires-python"] if name == "deploy" else []
        quiet = ["--disable-pip-version-check", "--progress-bar", "off", "--quiet"]
        subprocess.run([pip, "install", *quiet, *loose, "--requirement", unfinished], check=True)
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
