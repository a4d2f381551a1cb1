"""The report as one HTML file that needs no other: no scripts, no fonts, no pictures beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape

from models.study.result import Figure, Section, Table

_STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --soft: #57606a; --line: #d8dee4; --wash: #f6f8fa;
  --link: #0b5cad; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff;
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 2.5rem 1.5rem 5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.35rem; margin: 3rem 0 .75rem; padding-top: 1rem; border-top: 1px solid var(--line); }
p { max-width: 75ch; }
.lead { font-size: 1.08rem; background: var(--wash); border-left: 4px solid var(--link);
  padding: 1rem 1.25rem;
  max-width: none; }
nav ul { columns: 2; padding-left: 1.2rem; margin: 1rem 0; }
a { color: var(--link); }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; width: 100%; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; caption-side: top; }
th, td { text-align: left; vertical-align: top; padding: .4rem .7rem; border-bottom: 1px solid var(--line); }
th { background: var(--wash); }
figure { margin: 1.75rem 0; }
figure img { width: 100%; height: auto; border: 1px solid var(--line); }
figcaption { color: var(--soft); font-size: .92rem; max-width: 90ch; margin-top: .4rem; }
@media print { nav { display: none; } h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""


def html(title: str, conclusion: str, sections: tuple[Section, ...], drawings: Mapping[str, str]) -> str:
    """Return the page. drawings: the SVG of each figure by its name; they become data: images."""
    links = "".join(f'<li><a href="#s{i}">{escape(s.title)}</a></li>' for i, s in enumerate(sections))
    body = "".join(_section(i, section, drawings) for i, section in enumerate(sections))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n"
        f'<p class="lead">{escape(conclusion)}</p>\n'
        f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n{body}</main>\n'
        "</body>\n</html>\n"
    )


def _section(number: int, section: Section, drawings: Mapping[str, str]) -> str:
    paragraphs = "".join(f"<p>{escape(text)}</p>\n" for text in section.paragraphs)
    tables = "".join(_table(table) for table in section.tables)
    figures = "".join(_figure(figure, drawings[figure.name]) for figure in section.figures)
    title = f'<h2 id="s{number}">{escape(section.title)}</h2>'
    return f"<section>\n{title}\n{paragraphs}{tables}{figures}</section>\n"


def _table(table: Table) -> str:
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    header = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in table.rows)
    inside = f"{caption}<thead><tr>{header}</tr></thead>\n<tbody>\n{rows}</tbody>"
    return f'<div class="scroll"><table>{inside}</table></div>\n'


def _figure(figure: Figure, svg: str) -> str:
    picture = base64.b64encode(svg.encode()).decode()
    alt = escape(figure.alt or figure.caption)
    return (
        f'<figure><img src="data:image/svg+xml;base64,{picture}" alt="{alt}">'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>\n"
    )
