"""The wheel and the chart's package: they work without a clone."""

import json
import os
import re
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

from deploy import release
from headroom.loadtest.server import free_port
from headroom.version import version

pytestmark = pytest.mark.more

Run = Callable[..., str]


@pytest.fixture(scope="module")
def headroom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's `headroom` in a new environment, which borrows all other packages from this one."""
    directory = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    wheel = release.make_wheel(tmp_path_factory.mktemp("dist"))
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
        theirs.unlink()
        theirs.parent.rmdir()


@pytest.mark.slow
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


def test_helm_packs_the_chart_with_the_files_that_it_links_to(tmp_path: Path) -> None:
    package = release.make_chart(tmp_path, "0.3.0.dev7+g1a2b3c4d")
    assert package.name == "headroom-0.3.0-dev.7+g1a2b3c4d.tgz", "Semantic Versioning"
    with tarfile.open(package) as archive:
        chart = archive.extractfile("headroom/Chart.yaml")
        assert chart is not None
        assert yaml.safe_load(chart)["appVersion"] == "0.3.0.dev7+g1a2b3c4d"
        for name, source in (("rules.yml", "prometheus/rules.yml"), ("serve.yaml", "serve.yaml")):
            packed = archive.extractfile(f"headroom/files/{name}")
            assert packed is not None
            assert packed.read() == (release.ROOT / "deploy" / source).read_bytes()
