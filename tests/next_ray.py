"""`make next-ray VERSION=` runs the tests of how we use Ray against another release.

The environment holds that release and what it needs; the rest comes from the environment of this process.
What fails is named by its test; service/ray/patches.py says which patch that is about, and what to look at.
"""

import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRATCH = ROOT / ".venv-next-ray"
PYTHON = SCRATCH / "bin" / "python"
TESTS = [
    "tests/service/ray",  # names and configurations first, then real clusters
    "tests/security/test_ports.py",
    "tests/service/test_deployment.py",
    "tests/service/test_replicas.py",
    "tests/service/cli/test_serve.py",
]


def install(version: str) -> None:
    """Make the scratch environment with this release of Ray; the newest if it is empty."""
    shutil.rmtree(SCRATCH, ignore_errors=True)
    venv.create(SCRATCH, symlinks=True)
    shared = [path for path in sys.path if Path(path).name == "site-packages"]
    shared += [path for path in site.getsitepackages() if path not in shared]
    scheme = {"base": str(SCRATCH), "platbase": str(SCRATCH)}
    packages = Path(sysconfig.get_path("purelib", vars=scheme))
    (packages / "shared.pth").write_text("\n".join([str(ROOT), *shared]) + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(PYTHON), "install"]
    release = f"=={version}" if version else ""
    # First Ray itself, so that the shared one does not count as installed; then what it needs beyond ours.
    subprocess.run([*pip, "--quiet", "--ignore-installed", "--no-deps", f"ray{release}"], check=True)
    subprocess.run([*pip, "--quiet", f"ray[serve]{release}"], check=True)
    command = Path(sys.executable).with_name("headroom").read_text().partition("\n")[2]
    headroom = SCRATCH / "bin" / "headroom"
    headroom.write_text(f"#!{PYTHON}\n{command}")
    headroom.chmod(0o755)


def main(version: str) -> int:
    """Install the release and run the tests; return pytest's exit status."""
    install(version)
    about = "import ray; print(ray.__version__, ray.__file__)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([PYTHON, "-W", "ignore", "-c", about], check=True, env=environment)
    options = ["-q", "-rfE", "--tb=short", "-p", "no:cacheprovider"]
    # Warnings of another release are no failures here.
    tests = [PYTHON, "-m", "pytest", *options, "-W", "default", *TESTS]
    return subprocess.run(tests, check=False, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
