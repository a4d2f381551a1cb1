"""What `make release` writes: wheel and chart work without a clone, and what is signed can be verified."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml

from headroom.loadtest.server import free_port
from headroom.version import ROOT, version

pytestmark = pytest.mark.more

Run = Callable[..., str]


def write(part: str, folder: Path, **variables: str) -> list[Path]:
    """Write a part of a release into a folder; return the files that are there then."""
    command = ["bash", ROOT / "deploy" / "release.sh", part, folder]
    subprocess.run(command, env=os.environ | {"PYTHON": sys.executable} | variables, check=True)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def headroom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's `headroom` in a new environment, which borrows all other packages from this one."""
    directory = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    (wheel,) = write("wheel", tmp_path_factory.mktemp("dist"))
    install = [*pip, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, umask=0o002)  # Ubuntu's for people: the group may write all files
    packages = next(directory.glob("lib/python*/site-packages"))
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory / "bin" / "headroom"


@pytest.fixture
def run(headroom: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a program of the environment in an empty directory and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def run(*words: str) -> str:
        done = subprocess.run(
            [headroom.with_name(words[0]), *words[1:]], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_packages_and_the_kernels_of_every_level_come_from_the_wheel(run: Run, headroom: Path) -> None:
    script = """
import headroom
from headroom import loadtest, models, service
from headroom.models.ops.kernel_build import LEVELS, library_of
for module in (headroom, loadtest, models, service): print(module.__file__)
for level in LEVELS:
    if level.machine == "x86_64": print(library_of(level))
"""
    files = run("python", "-c", script).split()
    assert len(files) >= 8
    assert all(Path(file).is_relative_to(headroom.parents[1]) for file in files)


def test_the_wheel_has_the_version_of_its_commit(run: Run, headroom: Path) -> None:
    packages = next(headroom.parents[1].glob("lib/python*/site-packages"))
    metadata = next(packages.glob("headroom-*.dist-info/METADATA")).read_text()
    assert f"\nVersion: {version()}\n" in metadata
    assert run("headroom", "--version") == f"headroom {version()}\n"


def test_the_wheel_leaves_another_wheels_models_package_alone(run: Run, headroom: Path) -> None:
    packages = next(headroom.parents[1].glob("lib/python*/site-packages"))
    theirs = packages / "models" / "__init__.py"
    theirs.parent.mkdir()
    theirs.write_text("OWNER = 'another wheel'\n")
    try:
        both = "import models; from headroom import HeadMask; print(models.OWNER, HeadMask.__module__)"
        assert run("python", "-c", both) == "another wheel headroom.models.masks.head_mask\n"
        record = next(packages.glob("headroom-*.dist-info/RECORD")).read_text()
        owned = {line.partition("/")[0] for line in record.splitlines()}
        assert {name for name in owned if not name.startswith(("headroom", ".."))} == set()
    finally:
        shutil.rmtree(theirs.parent)


def test_the_service_runs_in_an_empty_directory(run: Run, headroom: Path, tmp_path: Path) -> None:
    assert json.loads(run("headroom", "score", "lamp", "a desk lamp", "--json"))["title"] == "a desk lamp"
    port = str(free_port())
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
    with subprocess.Popen(
        [headroom, "serve", "--port", port, "--replicas", "1", "--device", "cpu"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip().rpartition(" ")[2]
        try:
            assert url == f"http://127.0.0.1:{port}"
            (model, *_) = httpx.get(f"{url}/v1/models").json()["models"]
            assert model["kernels_skipped"] == []
            variants = httpx.get(f"{url}/v1/variants").json()["variants"]
            assert "pruned20" in {variant["name"] for variant in variants}, "those of deploy/serve.yaml"
            page = httpx.get(url).text
            files = re.findall(r'(?:src|href)="([^"]+)"', page)
            assert len(files) >= 3
            for path in ("docs", *files):
                assert httpx.get(f"{url}/{path}").status_code == 200, path
            load = "load run --scenario steady --rate 2 --duration 2s --warmup 0 --max-lag 10s --slo p99=9s"
            report = json.loads(run("headroom", *load.split(), "--json", url))
            assert report["requests"]["ok"] == report["requests"]["scheduled"] > 0
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(100) == 0


def test_the_chart_holds_the_files_that_it_links_to(tmp_path: Path) -> None:
    (package,) = write("chart", tmp_path)
    number = re.sub(r"\.dev(\d+)", r"-dev.\1", version())
    assert package.name == f"headroom-{number}.tgz", "Semantic Versioning"
    with tarfile.open(package) as archive:
        chart = archive.extractfile("headroom/Chart.yaml")
        assert chart is not None
        about = yaml.safe_load(chart)
        assert (about["version"], about["appVersion"]) == (number, version())
        for name, source in (("rules.yml", "prometheus/rules.yml"), ("serve.yaml", "serve.yaml")):
            packed = archive.extractfile(f"headroom/files/{name}")
            assert packed is not None
            assert packed.read() == (ROOT / "deploy" / source).read_bytes()


def documented(command: str, home: Path, folder: Path) -> int:
    """Run a command of docs/install.md, and return its status."""
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    (line,) = re.findall(rf"^\$ ({re.escape(command)}.*?)(?: +#.*)?$", page, re.MULTILINE)
    environment = os.environ | {"HOME": str(home)}
    return subprocess.run(["bash", "-c", line], cwd=folder, env=environment, check=False).returncode


def test_what_is_signed_is_verified_as_documented_and_no_changed_file_passes(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "headroom.whl").write_bytes(b"wheel")
    (dist / "headroom.tgz").write_bytes(b"chart")
    assert documented("openssl genpkey", tmp_path, tmp_path) == 0
    assert documented("openssl pkey", tmp_path, tmp_path) == 0
    files = write("sums", dist, KEY=str(tmp_path / "release.key"))
    assert [file.name for file in files] == ["SHA256SUMS", "SHA256SUMS.sig", "headroom.tgz", "headroom.whl"]
    (dist / "release.pub").write_bytes((tmp_path / "release.pub").read_bytes())
    assert documented("openssl dgst", tmp_path, dist) == 0
    (dist / "headroom.whl").write_bytes(b"another")
    assert documented("openssl dgst", tmp_path, dist) != 0
    (dist / "headroom.whl").write_bytes(b"wheel")
    (dist / "SHA256SUMS").write_text((dist / "SHA256SUMS").read_text().replace("a", "b"))
    assert documented("openssl dgst", tmp_path, dist) != 0
