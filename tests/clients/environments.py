"""Runs other people's clients, each in an environment of its own, against a running service.

`make clients` makes the environments: `.venv-clients/NAME` from `requirements/NAME.txt`. A script of
`scripts/` runs there and prints what its clients returned or raised as JSON; the tests judge it here.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-clients"
SECONDS = 240
"""The longest that all the clients of one environment may take, imports included."""


def python(name: str) -> Path:
    """The interpreter of an environment. Fails the running test if it is missing or not up to date."""
    wanted = HERE / "requirements" / f"{name}.txt"
    installed = ENVIRONMENTS / name / "installed.txt"
    if not installed.exists() or installed.read_text() != wanted.read_text():
        state = "missing" if not installed.exists() else f"not what {wanted.name} says any more"
        pytest.fail(f"the clients' environment {name} is {state}; run: make clients", pytrace=False)
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
