"""Builds the CPU image: with Docker if its daemon answers, otherwise with Podman, which needs none.

Podman starts from a Debian that mmdebstrap makes, in place of the Dockerfile's BASE: no image is downloaded.

python -m deploy.image ARCHIVE NOTICES

This writes the image as an archive that `docker load` takes, and the licences of all that it holds.
"""

import ast
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from headroom.version import ROOT, version

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
BASE = "localhost/headroom-base"
SUITE = "bookworm"  # Debian 12, as the Dockerfile's BASE
PIP_SOURCES = (
    *("index-url", "extra-index-url", "find-links", "no-index", "trusted-host"),
    *("cert", "client-cert", "proxy", "timeout"),
)
"""pip's options that say where packages are and how to get there."""


@dataclass(frozen=True)
class Engine:
    """A program that builds and runs images, and what it needs to run one beside Docker's options."""

    command: tuple[str, ...]
    run_options: tuple[str, ...] = ()

    def __call__(self, *arguments: str) -> str:
        """Return what the program prints. Raises SystemExit if it fails."""
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join([*self.command, *arguments])[:200]}: {done.stderr}")
        return done.stdout.strip()


DOCKER = Engine(("docker",))
PODMAN = Engine(
    ("podman", "--runtime", "runc"),  # crun refuses machines that have both versions of cgroups
    # Podman's health checks need systemd; its limits need a right that root may lack in a sandbox.
    ("--no-healthcheck", "--ulimit", "nofile=16384:16384", "--ulimit", "nproc=4096:4096"),
)


def engine_here() -> Engine:
    """Return Docker if its daemon answers, otherwise Podman. Raises SystemExit if a program is missing."""
    if shutil.which("docker") and not subprocess.run(["docker", "info"], capture_output=True).returncode:
        return DOCKER
    if missing := [name for name in ("podman", "runc", "mmdebstrap") if shutil.which(name) is None]:
        install = f"apt-get install -y {' '.join(missing)}"
        raise SystemExit(f"no Docker daemon answers; start it, or run as root: {install}")
    return PODMAN


def tag(number: str) -> str:
    """Return the image's name and tag of a version; a tag has no "+"."""
    return f"headroom:{number.replace('+', '-')}-cpu"


def build(engine: Engine, arguments: list[str]) -> str:
    """Build the image and return its id, since another build may move a tag.

    arguments: more arguments of `docker build`. Raises SystemExit if it fails.
    """
    with TemporaryDirectory() as folder:
        options = _podman_options(Path(folder)) if engine is PODMAN else []
        options += ["--build-arg", f"VERSION={version()}"]
        id_file = Path(folder, "id")
        command = [*engine.command, "build", "--file", str(DOCKERFILE), "--iidfile", str(id_file)]
        if subprocess.run([*command, *options, *arguments, str(ROOT)], check=False).returncode:
            raise SystemExit("the image was not built")
        return id_file.read_text("utf-8").strip()


def pip_settings(config_list: str, root: str) -> str:
    """Return a pip.conf for a container that sees this machine's files below `root`.

    config_list: what `pip config list` prints here. The packages then come from where they come from here.
    """
    options: dict[str, str] = {}
    for line in sorted(config_list.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")  # the environment comes last: it has the last word
        options[name.rpartition(".")[2]] = ast.literal_eval(value)
    # PyTorch's index may be out of reach where its wheel lies on a disk: do not wait for it long.
    lines = ["[global]", "retries = 1"]
    for name in PIP_SOURCES:
        value = options.get(name, options.get(f"default-{name}", ""))
        if words := [re.sub("^(file://)?/", rf"\1{root}/", word) for word in value.split()]:
            lines.append(f"{name} = {' '.join(words)}")
    return "\n".join(lines) + "\n"


def _podman_options(folder: Path) -> list[str]:
    if subprocess.run([*PODMAN.command, "image", "exists", BASE], check=False).returncode:
        _make_base(folder / "base.tar")
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    settings = folder / "pip.conf"
    settings.write_text(pip_settings(listed.stdout, "/mnt"), "utf-8")
    return [
        *("--format", "docker", "--isolation", "chroot", "--network", "host"),
        *("--volume", "/:/mnt:ro", "--volume", f"{settings}:/etc/pip.conf:ro"),
        *("--build-arg", f"BASE={BASE}"),
    ]


def _make_base(tar: Path) -> None:
    made = subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", SUITE, str(tar)], check=False)
    if made.returncode:
        raise SystemExit(f"mmdebstrap could not make a Debian {SUITE}")
    PODMAN("import", "--quiet", str(tar), BASE)


def main(archive: str, notices: str) -> None:
    """Build the image, tag it, and write the two files."""
    engine = engine_here()
    identity = build(engine, [])
    name = f"docker.io/library/{tag(version())}"  # which Docker calls headroom:…
    engine("tag", identity, name)
    engine("save", "--output", archive, name)
    show = ["run", "--rm", "--network", "none", "--entrypoint", "cat", *engine.run_options]
    text = engine(*show, identity, "/app/THIRD-PARTY-NOTICES.txt")
    Path(notices).write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
