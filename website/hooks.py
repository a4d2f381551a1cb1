"""MkDocs' hooks: add the pages that are not in docs/, and lead links to where their target is on the site."""

from __future__ import annotations

import posixpath
import re
import sys
from functools import partial
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # MkDocs loads a hook by its path

from website import commands, interface, notebook  # noqa: E402

RENAMED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "deploy/README.md": "deploy.md",
    "docs/decisions": "decisions/index.md",
    "docs/notebooks/prune_and_prove.ipynb": "notebooks/prune_and_prove.md",
}
"""The place on the site of what is not a file of docs/, by its path in the repository."""

SHOWN = {".yml": "yaml", ".yaml": "yaml", ".json": "json", ".py": "python", ".toml": "toml"}
"""Files that are shown as a page of code, and the language by which it is coloured."""

_CODE_OR_LINK = re.compile(r"(```.*?```|`[^`\n]+`)|\]\(([^)\s]+)\)|\b(src|srcset)=\"([^\"]+)\"", re.DOTALL)
_TWO_PICTURES = re.compile(
    r'<picture>\s*<source[^>]*srcset="([^"]+)">\s*<img\s+alt="([^"]*)"\s*src="([^"]+)">\s*</picture>',
    re.DOTALL,
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put one entry per decision into the navigation."""
    records = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert config.nav is not None
    for section in config.nav:
        for entry in next(iter(section.values())):
            if isinstance(entry, dict) and entry.get("Decisions") == "decisions":
                entry["Decisions"] = [f"decisions/{name}" for name in ("index.md", *records)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and every file outside docs/ that a page links to."""
    add = partial(File.generated, config)
    files.append(add("commands.md", content=commands.page()))
    document = interface.openapi()
    files.append(add("http.md", content=interface.operations_page(document)))
    files.append(add("http-shapes.md", content=interface.shapes_page(document)))
    files.append(add("openapi.json", content=interface.as_json(document)))
    files.append(add("decisions/index.md", content=_decisions()))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(add(_place(path), content=_rewritten(notebook.page(path), path)))
    for source in ("website/style.css", "website/iframe-worker.js", "service/page/icon.svg"):
        files.append(add(f"assets/{posixpath.basename(source)}", abs_src_path=str(ROOT / source)))
    for path in _linked_files():
        place = _place(path)
        language = SHOWN.get(path.suffix)
        if path.suffix == ".md":
            files.append(add(place, content=_rewritten(path.read_text("utf-8"), path)))
        elif language:
            text = path.read_text("utf-8")
            files.append(add(place, content=f"# {_name(path)}\n\n````{language}\n{text}````\n"))
        else:
            files.append(add(place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead the links of a file of docs/ to the site's pages."""
    if page.file.src_uri in ("index.md", "tutorial.md"):  # they stand alone: no list of neighbours
        page.meta["hide"] = ["navigation"]
    if page.file.generated_by is not None:
        return markdown
    return _rewritten(markdown, ROOT / "docs" / page.file.src_uri)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _place(path: Path) -> str:
    """Return where the site has a file or folder of the repository."""
    name = _name(path)
    if name in RENAMED:
        return RENAMED[name]
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    return f"source/{name}.md" if path.suffix in SHOWN else f"source/{name}"


def _target(link: str, page: Path) -> Path | None:
    """Return the file of the repository that a page links to; None for other sites and headings."""
    path, _, _ = link.partition("#")
    if not path or ":" in path:
        return None
    target = Path(posixpath.normpath((page.parent / path).as_posix()))
    if not target.is_relative_to(ROOT) or not target.exists():
        raise PluginError(f"{_name(page)}: {link}: there is no such file in the repository")
    return target


def _rewritten(markdown: str, page: Path) -> str:
    """Return a page with its links, which are those of the repository, as links of the site."""
    here = posixpath.dirname(_place(page))

    def link_on_site(found: re.Match[str]) -> str:
        code, link, attribute, source = found.groups()
        link = link or source
        if code:  # GitHub's tables want a bar in code escaped, the site's do not
            return code if code.startswith("```") else code.replace("\\|", "|")
        if (target := _target(link, page)) is None:
            return found[0]
        _, hash_, anchor = link.partition("#")
        link = posixpath.relpath(_place(target), here or ".") + hash_ + anchor
        return f'{attribute}="{link}"' if attribute else f"]({link})"

    # Two pictures, for light and dark: GitHub's form asks the system, the theme's the switch on the page.
    markdown = _TWO_PICTURES.sub(r"![\2](\3#only-light)\n![\2](\1#only-dark)", markdown)
    return _CODE_OR_LINK.sub(link_on_site, markdown)


def _linked_files() -> list[Path]:
    """Return the files outside docs/ that the site's pages link to, directly or through each other."""
    waiting = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        for code, link, _, source in _CODE_OR_LINK.findall(page.read_text("utf-8")):
            target = None if code else _target(link or source, page)
            if target is None or target in seen or target.is_dir():
                continue
            seen.add(target)
            if target.suffix == ".md":
                waiting.append(target)
    return sorted(path for path in seen if not path.is_relative_to(ROOT / "docs"))


def _decisions() -> str:
    """Return the page that lists the decision records."""
    lines = [
        "# Decisions",
        "",
        "Why headroom is built as it is: context, decision, consequences, one page each.",
        "",
    ]
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"
