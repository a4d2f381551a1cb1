"""Notebooks as pages: their text, code and saved outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def page(notebook: Path) -> str:
    """Return a notebook (nbformat 4) as Markdown, with its pictures in it."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts += [f"```python\n{source}\n```", *_outputs(cell["outputs"])]
    return "\n\n".join(parts) + "\n"


def _outputs(outputs: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what a reader of the notebook sees below a cell, in the richest form that a page can show."""
    for output in outputs:
        data = output.get("data", {})
        if "image/png" in data:
            picture = "".join(data["image/png"]).replace("\n", "")
            yield f'<img alt="The plot of the cell above." src="data:image/png;base64,{picture}">'
        elif "text/html" in data:
            yield "\n".join(line.strip() for line in "".join(data["text/html"]).splitlines() if line.strip())
        elif "text/markdown" in data:
            yield "".join(data["text/markdown"])
        elif "text/plain" in data:
            yield f"```text\n{''.join(data['text/plain'])}\n```"
