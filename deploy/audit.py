"""Asks what is known to be vulnerable among the installed packages: `make audit`.

python -m deploy.audit [OPTION OF pip-audit …]

It fails if a package could not be asked about, if there is none, and if the service that it asks knows
nothing: pip-audit alone takes a mirror's answer without a list of vulnerabilities for "none known".
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.version import Version

from tests.clients import environments

VULNERABLE = "urllib3==1.24.1"
"""A package that every service knows something of (CVE-2019-11324)."""


def installed() -> list[str]:
    """Return the packages beside this interpreter as NAME==VERSION, headroom excepted.

    A version is without its local part: PyPI knows torch 2.13.0, and no 2.13.0+cpu.
    """
    packages = {package.name: package.version for package in distributions()}
    packages.pop("headroom", None)
    return sorted(f"{name}=={Version(number).public}" for name, number in packages.items())


def audit(
    packages: list[str], options: list[str], *, quiet: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run pip-audit on packages as they are listed; quiet: capture what it prints."""
    program = environments.python("deploy").with_name("pip-audit")
    fixed = ["--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    with TemporaryDirectory() as folder:
        listed = Path(folder, "packages.txt")
        listed.write_text("\n".join(packages) + "\n", "utf-8")
        command = [program, *fixed, "--requirement", listed, *options]
        return subprocess.run(command, capture_output=quiet, text=True, check=False)


def main(options: list[str]) -> int:
    """Return pip-audit's status: 1 if it found something. Raises SystemExit if it could audit nothing."""
    packages = installed()
    if not packages:
        raise SystemExit("nothing was audited: no package is installed here; run: make install")
    known = audit([VULNERABLE], [*options, "--format", "json"], quiet=True)
    if not known.stdout or not json.loads(known.stdout)["dependencies"][0].get("vulns"):
        reason = (known.stderr.strip().splitlines() or ["no answer"])[-1]
        raise SystemExit(
            f"nothing was audited: the service knows nothing of {VULNERABLE}, a vulnerable one: {reason}"
        )
    print(f"asking about {len(packages)} packages", file=sys.stderr)
    return audit(packages, options).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
