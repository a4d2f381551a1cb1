"""The documentation site: it builds, which checks its links, and it loads nothing from elsewhere."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import typer
from typer.core import TyperGroup

import headroom
from headroom.models.study.kinds import KINDS
from headroom.service.cli.program import app

pytestmark = pytest.mark.more

ROOT = Path(__file__).parents[2]


class Reading(HTMLParser):
    """A page's anchors, headings, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.headings: list[str] = []
        self._heading: str | None = None  # the text so far of one that is open
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(values["href"])
        elif "src" in values:
            self.loaded.append(values["src"])
        if tag == "h3":
            self._heading = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "h3" and self._heading is not None:
            self.headings.append(self._heading)
            self._heading = None

    def handle_data(self, data: str) -> None:
        if self._heading is not None:
            self._heading += data


@dataclass(frozen=True)
class Site:
    folder: Path
    pages: dict[str, Reading]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The built site; every warning of the build is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = {
        page.relative_to(folder).as_posix(): Reading(page.read_text("utf-8"))
        for page in folder.rglob("*.html")
    }
    return Site(folder, pages)


def test_the_site_works_offline(site: Site) -> None:
    assert len(site.pages) > 40
    loaded = {(name, source) for name, page in site.pages.items() for source in page.loaded}
    assert {source for _, source in loaded if source.endswith(("style.css", "iframe-worker.js", ".png"))}
    assert [entry for entry in loaded if urlsplit(entry[1]).netloc] == []
    assert (site.folder / "search" / "search_index.js").is_file()  # for pages that are opened as files


def test_every_command_and_route_is_in_the_reference(site: Site) -> None:
    """The tables come from the parsers and from OpenAPI; this counts that no command or route is left out."""
    commands = {name for name in site.pages["commands.html"].ids if name.startswith("headroom-")}
    assert commands == {
        f"headroom-{name.replace(' ', '-')}" for name in command_names(typer.main.get_command(app))
    }
    document = json.loads((site.folder / "openapi.json").read_text("utf-8"))
    routes = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert "POST /v1/score" in routes
    assert routes <= {heading.removesuffix("¶") for heading in site.pages["http.html"].headings}


def test_every_public_name_is_in_the_python_reference(site: Site) -> None:
    names = {f"headroom.{name}" for name in headroom.__all__ if name != "study"}
    kinds = {f"headroom.models.api.studies.{kind}" for kind in KINDS}
    assert names | kinds <= site.pages["python.html"].ids


def test_the_notebook_is_a_page_with_its_pictures(site: Site) -> None:
    page = site.pages["notebooks/prune_and_prove.html"]
    assert sum(source.startswith("data:image/png;base64,") for source in page.loaded) == 4


def command_names(group: TyperGroup) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from (f"{name} {inner}" for inner in command_names(command))
        else:
            yield name
