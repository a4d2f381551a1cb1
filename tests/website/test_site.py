"""The documentation site: it builds, which checks its links, and it loads nothing from elsewhere."""

import os
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.more

ROOT = Path(__file__).parents[2]


class Reading(HTMLParser):
    """What a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(values["href"])
        elif "src" in values:
            self.loaded.append(values["src"])


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


def test_the_notebook_is_a_page_with_its_pictures(site: Site) -> None:
    page = site.pages["notebooks/prune_and_prove.html"]
    assert sum(source.startswith("data:image/png;base64,") for source in page.loaded) == 4
