"""One importable package, `headroom`: what else is called `models` or `service` does not matter to it."""

import subprocess
import sys
from pathlib import Path

import pytest

import headroom

ROOT = Path(__file__).parents[1]


def test_an_editable_install_puts_nothing_but_headroom_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    listing = "import importlib.util as u; print(*(n for n in NAMES if u.find_spec(n)))"
    names = ["headroom", "models", "service", "loadtest", "tests", "benchmarks", "deploy", "website"]
    found = subprocess.run(
        [sys.executable, "-P", "-c", f"NAMES = {names}; {listing}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path.home(),
    )
    assert found.stdout.split() == ["headroom"]


def test_the_package_is_typed_and_names_what_it_offers() -> None:
    package = Path(headroom.__file__).parent
    assert (package / "py.typed").exists()
    assert {"Classifier", "HeadMask", "ModelError"} <= set(headroom.__all__)
    assert all(hasattr(headroom, name) for name in headroom.__all__)
    assert not hasattr(headroom, "classifier_of_another_project")


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings another OpenMP")
@pytest.mark.parametrize(
    ("chosen", "spins"), [({}, 10_000), ({"OMP_WAIT_POLICY": "PASSIVE"}, 0), ({"GOMP_SPINCOUNT": "7"}, 7)]
)
def test_threads_that_wait_for_each_other_soon_sleep_unless_the_user_chose_otherwise(
    chosen: dict[str, str], spins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As GNU's OpenMP itself shows when torch is imported."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    for name, value in (chosen | {"OMP_DISPLAY_ENV": "VERBOSE"}).items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-c", "from headroom import Classifier"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert f"GOMP_SPINCOUNT = '{spins}'" in shown
