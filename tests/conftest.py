"""Fixtures that more than one test package needs, and how the tests are shared out among processes."""

import os
import random
import shutil
import tempfile

# What the developer serves here is none of the tests', nor the reverse.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="headroom-state-")
# Before torch and numpy read it: threads that wait for each other sleep. They would spin, and small
# products would take ten times as long when something else needs the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadScopeScheduling

from headroom import Classifier
from headroom.models import device
from headroom.models.checkpoint import sandbox
from headroom.models.ops.kernel_build import build_all, levels_of_machine
from tests.checkpoints import load, write_checkpoint
from tests.sandboxes import Sandboxes
from tests.service.running import Server, running

settings.load_profile("ci")  # everywhere: the same examples in every run, however long each takes
# Hypothesis also tries constants of the modules that are loaded. A test would get other examples in the whole
# suite than alone, and others again with each edit of a file that it does not use.
providers._get_local_constants = lambda: providers._local_constants

SHARED = (
    # With `server`, which is then started in one process only.
    (
        *("tests/clients/", "tests/security/", "tests/service/api/"),
        *("tests/service/ray/test_environment.py", "tests/service/ray/test_patches.py"),
        "tests/service/test_deployment.py",
    ),
    ("tests/service/page/",),
    (  # `two_replicas`
        *("tests/service/test_dashboard.py", "tests/service/test_replicas.py"),
        "tests/service/experiments/over_http/test_losses.py",
    ),
)
"""Files and folders that share what takes long to start: a server, a browser."""
APART = {"tests/service/experiments/test_any_history.py"}
"""Files whose tests share nothing and take minutes: each may run in another process."""
ENDED_WITH_GROUP = {"server", "two_replicas", "page_server", "chromium"}
"""Fixtures of the whole session that only the tests of one group use."""


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Keep the tests of a file, or of files that share a server, in one process of `pytest -n 2`."""

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    return ByGroup(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="Run the files, and each one's tests, in random order."
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = config.getoption("shuffle")
    return [] if seed is None else [f"random order: --shuffle {seed}"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the groups that take long, so that all processes end at about the same time."""
    for item in items:
        if item.get_closest_marker("alone") and not item.nodeid.startswith("tests/loadtest/"):
            raise pytest.UsageError(f"{item.nodeid}: `make test-all` looks for `alone` in tests/loadtest")
        if _needs_more(item):
            item.add_marker(pytest.mark.more)
    if (seed := config.getoption("shuffle")) is not None:
        _shuffle(items, random.Random(seed))
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = {_group(item.nodeid) for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: _group(item.nodeid) not in slow)


def _needs_more(item: pytest.Item) -> bool:
    """Return whether a test is for `make test-all` by what it uses: PostgreSQL, or a second real server."""
    assert isinstance(item, pytest.Function)
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {value for value in values if isinstance(value, str)}
    return "postgresql" in named or not {"postgres", "two"}.isdisjoint(item.fixturenames)


def _shuffle(items: list[pytest.Item], order: random.Random) -> None:
    """Shuffle the files and each one's tests; a file's tests stay together for its fixtures."""
    files = sorted({str(item.path) for item in items})
    order.shuffle(files)
    place = {file: index for index, file in enumerate(files)}
    order.shuffle(items)
    items.sort(key=lambda item: place[str(item.path)])


def _group(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    if file in APART:
        return nodeid
    return next((paths[0] for paths in SHARED if file.startswith(paths)), file)


class EndsWithGroup:
    """Ends the servers and the browser after the last test that uses them.

    An idle server takes a tenth of a core, and pytest by itself ends them after all the other tests.
    """

    def __init__(self) -> None:
        self._started: list[tuple[pytest.FixtureDef[Any], Any]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        value = yield
        if fixturedef.scope == "session" and fixturedef.argname in ENDED_WITH_GROUP:
            self._started.append((fixturedef, request))
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
        yield
        if nextitem is None or _group(nextitem.nodeid) != _group(item.nodeid):
            while self._started:
                fixture, request = self._started.pop()
                fixture.finish(request)


def pytest_configure(config: pytest.Config) -> None:
    """Add a plugin: hooks of this file itself are not called for fixtures of the whole session."""
    config.pluginmanager.register(EndsWithGroup())


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    """Compile the kernels of this source, as `make install` does; nothing to do if it did."""
    build_all(levels_of_machine())


@pytest.fixture(scope="session", autouse=True)
def _sandboxes() -> Iterator[None]:
    """Try the tokenizers of checkpoints in forks of one process."""
    sandboxes = Sandboxes(sandbox.PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "start", sandboxes.start)
        yield
    sandboxes.close()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Give torch the same random numbers, whichever tests ran before."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Give torch one thread: on a busy machine, those of tiny products wait longer than they compute."""
    with device.one_thread():
        yield


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graded checkpoint with random weights: 3 layers x 4 heads x 32, five grades, 64 positions."""
    return write_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def clf(tiny_checkpoint: Path) -> Classifier:
    """Its network, for tests that leave it as it is."""
    return load(tiny_checkpoint)


@pytest.fixture(scope="session")
def one_label(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    """The network of a checkpoint with one label, and so without grades."""
    return load(write_checkpoint(tmp_path_factory.mktemp("one"), seed=1, num_labels=1))


@pytest.fixture
def reversed_clf(tiny_checkpoint: Path) -> Classifier:
    """The same network, whose grades the caller puts in the opposite order."""
    order = load(tiny_checkpoint).grades[::-1]
    return Classifier.load(tiny_checkpoint, "cpu", "float32", label_order=order)


@pytest.fixture(scope="session")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running `headroom serve` with a tiny random model. Tests leave it able to serve."""
    with running(tmp_path_factory.mktemp("server"), tiny_checkpoint) as server:
        yield server


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: it holds packages of our folders' names, which raise when they are imported."""
    directory = tmp_path / "shop"
    for name in ("models", "service", "loadtest", "tests", "benchmarks", "deploy"):
        (directory / name).mkdir(parents=True)
        (directory / name / "__init__.py").write_text("raise RuntimeError(f'{__name__} of another project')")
    monkeypatch.chdir(directory)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return directory
