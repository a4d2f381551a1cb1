"""How results look in a notebook."""

from collections.abc import Sequence
from html import escape

from headroom.models.study.page import Table


def as_html(headline: str, paragraphs: Sequence[str], tables: Sequence[Table]) -> str:
    """Return a headline, paragraphs and tables as HTML."""
    parts = [f"<p><strong>{escape(headline)}</strong></p>"]
    parts += [f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs]
    for table in tables:
        caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
        header = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
        rows = ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows]
        parts.append(
            f"<table>{caption}<thead><tr>{header}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        )
    return "\n".join(parts)
