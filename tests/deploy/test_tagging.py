"""The changelog's sections, and how `make release` makes a commit a release."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from deploy import tagging
from headroom.version import ROOT, version
from tests.service.experiments.releases import COMMITS
from tests.test_version import IDENTITY, git_in

pytestmark = pytest.mark.more

SECTION = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
PARTS = {"What is new", "Breaking", "Database"}


def sections(text: str) -> dict[str, str]:
    """The changelog's sections by their headings."""
    return dict(SECTION.findall(text))


CHANGELOG = sections(tagging.CHANGELOG.read_text("utf-8"))


def test_there_is_one_section_a_release_newest_first_with_its_date() -> None:
    unreleased, *released = CHANGELOG
    assert unreleased == "Unreleased"
    numbers = [re.fullmatch(r"(\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)", heading) for heading in released]
    versions = [Version(number[1]) for number in numbers if number is not None]
    assert len(versions) == len(released)
    assert versions == sorted(set(versions), reverse=True)


def test_breaking_changes_and_the_database_have_a_place_of_their_own() -> None:
    for heading, text in CHANGELOG.items():
        parts = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
        if not heading.startswith("0.2.0"):  # which was written before
            assert parts <= PARTS, heading
            assert not text.strip() or parts >= {"Breaking", "Database"}, heading


def test_a_released_section_is_as_it_was_when_it_was_tagged() -> None:
    for heading, text in CHANGELOG.items():
        number = heading.partition(" ")[0]
        for revision in (f"v{number}", COMMITS.get(number, "")):
            shown = subprocess.run(
                ["git", "show", f"{revision}:CHANGELOG.md"], cwd=ROOT, capture_output=True, text=True
            )
            if revision and shown.returncode == 0:
                assert sections(shown.stdout).get(heading) == text, f"{heading} is released, and final"
                break


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with what releases, and a changelog with something to release."""
    for file in ("src/headroom/version.py", "deploy/tagging.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "src" / "headroom" / "__init__.py").touch()
    (tmp_path / "CHANGELOG.md").write_text("# C\n\n## Unreleased\n\nNew.\n\n## 0.2.0 (2026-11-26)\n\nOld.\n")
    ignored = "__pycache__\n/tests\n.venv-clients\n/src/headroom/models\n/deploy/*\n!/deploy/tagging.py\n"
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text() + ignored)
    git = git_in(tmp_path)
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    return tmp_path


def python_in(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python on a checkout's own code."""
    variables = os.environ | IDENTITY | {"PYTHONPATH": f"{checkout / 'src'}:{checkout}"}
    return subprocess.run(
        [sys.executable, *words], cwd=checkout, env=variables, capture_output=True, text=True
    )


def release(checkout: Path, *wanted: str) -> list[str]:
    """Release in a process of its own; return what it says, the version after it, and the notes."""
    script = (
        "import sys; from deploy import tagging as t; from headroom.version import version as v;"
        "print(t.tag(*sys.argv[1:])); print(v()); print(t.notes(v()))"
    )
    done = python_in(checkout, "-c", script, *wanted)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip().split("\n", 2)


def with_the_rest(checkout: Path) -> Path:
    """Link everything that `make release` imports into a checkout, which ignores it."""
    modules = [path.relative_to(ROOT) for path in (ROOT / "deploy").glob("*.py")]
    for name in (*modules, "tests", ".venv-clients"):
        if not (checkout / name).exists():
            (checkout / name).symlink_to(ROOT / name)
    if not (checkout / "src" / "headroom" / "models").exists():
        (checkout / "src" / "headroom" / "models").symlink_to(ROOT / "models")
    return checkout


def refusal(checkout: Path, *words: str) -> str:
    """What `make release` says as it fails, before it builds anything."""
    with_the_rest(checkout)
    done = python_in(checkout, "-m", "deploy.release", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == ""
    return done.stderr.strip()


def test_a_release_dates_its_section_tags_the_commit_and_moves_on(checkout: Path) -> None:
    git = git_in(checkout)
    said, number, notes = release(checkout)
    assert said == "tagged v0.3.0; git push origin HEAD v0.3.0 publishes it"
    assert number == "0.3.0"
    assert re.fullmatch(r"## 0\.3\.0 \(\d{4}-\d\d-\d\d\)\n\nNew\.", notes)
    assert git("describe", "--tags") == "v0.3.0"
    assert not git("status", "--porcelain")
    assert next(iter(sections((checkout / "CHANGELOG.md").read_text()))) == "Unreleased"
    assert release(checkout)[:2] == ["v0.3.0 is tagged here already", "0.3.0"], "again, to build it again"
    git("commit", "--quiet", "--allow-empty", "--message", "more")
    said, number, _ = release(checkout)
    assert said == "no release: CHANGELOG.md has nothing below `## Unreleased`"
    assert number.startswith("0.4.0.dev1+g")


def test_a_release_can_have_another_number(checkout: Path) -> None:
    assert release(checkout, "0.2.1")[1] == "0.2.1"


def test_what_cannot_be_released_is_left_as_it_is(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = git_in(checkout)
    before = git("rev-parse", "HEAD")
    assert refusal(checkout, "0.2.0") == "no release: there is a 0.2.0 already"
    for name in IDENTITY:
        monkeypatch.setitem(IDENTITY, name, "")
    said, number, notes = release(checkout)
    assert said.startswith("no release: ")
    assert "name" in said, "git's own words"
    monkeypatch.undo()
    assert not git("status", "--porcelain")
    assert number.startswith("0.3.0.dev1+g")
    assert notes == "## Unreleased\n\nNew."
    (checkout / "more").touch()
    assert release(checkout)[0] == "no release: something in the tree is changed"
    assert (git("rev-parse", "HEAD"), git("tag")) == (before, "")


def documented_key(home: Path, checkout: Path) -> Path:
    """Make the key pair by the commands of docs/install.md, in a checkout."""
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    commands = re.findall(r"^\$ (openssl (?:genpkey|pkey) .*)", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        subprocess.run(
            ["bash", "-c", command], cwd=checkout, env=os.environ | {"HOME": str(home)}, check=True
        )
    (key,) = re.findall(r"^\$ make release KEY=\$HOME/(.*)$", page, re.MULTILINE)
    return home / key


def test_the_documented_key_does_not_make_the_tree_one_that_cannot_be_released(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("home")
    assert documented_key(home, checkout).exists()
    documented_key(checkout, checkout)  # whoever puts it into the checkout all the same
    assert release(checkout)[1] == "0.3.0"


def test_who_asks_for_a_release_gets_one_or_a_failure(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Not a signed build from between releases, with exit status 0."""
    key = str(documented_key(tmp_path_factory.mktemp("home"), checkout))
    git = git_in(checkout)
    (checkout / "service").mkdir()
    extra = checkout / "service" / "extra.py"
    extra.touch()
    for words in (("0.3.0",), ("--key", key)):
        assert refusal(checkout, *words) == "no release: something in the tree is changed"
    extra.unlink()
    assert git("tag") == ""
    assert release(checkout)[1] == "0.3.0"
    assert refusal(checkout, "0.3.1", "--key", key) == "no release: this commit is v0.3.0 already"
    for changed in (checkout / "CHANGELOG.md", extra):
        with changed.open("a") as file:
            file.write("more\n")
        for words in ((), ("0.3.0",), ("--key", key)):
            assert refusal(checkout, *words) == "no release: something in the tree is changed"
        git("checkout", "--", ".")
    extra.unlink()
    assert release(checkout, "0.3.0")[:2] == ["v0.3.0 is tagged here already", "0.3.0"]


def test_the_provenance_says_that_the_tree_was_changed_also_by_a_new_file(checkout: Path) -> None:
    for name in ("constraints.txt", "pyproject.toml", "deploy/docker/Dockerfile"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).touch()
    script = """
import datetime, json
from deploy.provenance import Image, statement
about = statement([], "0.3.0", Image("headroom", "ab"), datetime.datetime.now(datetime.UTC))
print(json.dumps(about["predicate"]["buildDefinition"]["resolvedDependencies"][0]))
"""

    def commit() -> dict[str, object]:
        done = python_in(with_the_rest(checkout), "-c", script)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    git = git_in(checkout)
    git("add", ".")
    git("commit", "--quiet", "--message", "more")
    assert commit() == {"name": "headroom", "digest": {"gitCommit": git("rev-parse", "HEAD")}}
    (checkout / "extra.py").touch()
    assert commit()["annotations"] == {"changed": True}


def test_the_notes_of_this_commit_are_there() -> None:
    assert tagging.notes(version()).startswith("## ")
    with pytest.raises(SystemExit, match=r"CHANGELOG\.md has no section 9\.9\.9"):
        tagging.notes("9.9.9")
