"""The version of a checkout, from git, or from what is there without it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version

from headroom.version import ROOT

Git = Callable[..., str]
IDENTITY = {
    f"GIT_{role}_{part}": "test@example.org" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")
}


def git_in(directory: Path) -> Git:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=directory, capture_output=True, text=True, env=os.environ | IDENTITY
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return git


def version_of(checkout: Path) -> str:
    script = checkout / "src" / "headroom" / "version.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with our code, without git."""
    directory = tmp_path / "checkout"
    (directory / "src" / "headroom").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "headroom" / "version.py", directory / "src" / "headroom")
    (directory / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-11-26)\n")
    return directory


@pytest.fixture
def git(checkout: Path) -> Git:
    git = git_in(checkout)
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    return git


def commit(git: Git, times: int) -> str:
    """Make commits and return the last one's short name."""
    for _ in range(times):
        git("commit", "--quiet", "--allow-empty", "--message", "more")
    return git("rev-parse", "--short=8", "HEAD")


def test_a_tag_is_a_version_and_commits_after_it_lead_to_the_next_one(checkout: Path, git: Git) -> None:
    git("tag", "--annotate", "v0.3.0", "--message", "x")
    released = version_of(checkout)
    name = commit(git, 7)
    later = version_of(checkout)
    script = checkout / "src" / "headroom" / "version.py"
    script.write_text(script.read_text() + "# changed\n")
    changed = version_of(checkout)
    assert (released, later) == ("0.3.0", f"0.4.0.dev7+g{name}")
    assert changed == f"{later}.dirty"
    assert Version("0.3.0") < Version(later) < Version(changed) < Version("0.4.0.dev8") < Version("0.4.0")


@pytest.mark.parametrize(
    "file",
    [
        "service/extra.py",
        "deploy/serve.yaml",
    ],
)
def test_a_new_or_changed_file_that_is_built_in_makes_it_no_release(
    file: str, checkout: Path, git: Git
) -> None:
    git("tag", "v0.3.0")
    (checkout / "scores.csv").touch()  # what a job writes, which a wheel does not hold
    assert version_of(checkout) == "0.3.0"
    path = checkout / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert version_of(checkout) == "0.3.0+dirty"
    git("add", file)
    git("commit", "--quiet", "--message", "more")
    git("tag", "v0.4.0")
    assert version_of(checkout) == "0.4.0"
    path.write_text("changed")
    assert version_of(checkout) == "0.4.0+dirty"


def test_without_git_the_version_is_the_one_that_was_written_or_that_comes_next(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert version_of(checkout) == "0.3.0.dev0"
    (checkout / "CHANGELOG.md").unlink()
    assert version_of(checkout) == "0.1.0.dev0"
    (checkout / "src" / "headroom" / "version.txt").write_text("0.3.0.dev7+g1a2b3c4d\n")
    monkeypatch.setenv("PATH", "")
    assert version_of(checkout) == "0.3.0.dev7+g1a2b3c4d"


def test_the_program_says_the_version_of_this_checkout() -> None:
    program = Path(sys.executable).with_name("headroom")
    printed = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    assert printed == f"headroom {version_of(ROOT)}\n"
    Version(printed.split()[1])
