"""`report.html`: one file without scripts that loads nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from loadtest import tables
from loadtest.page.charts import charts
from loadtest.report import Report, server_problems, verdict

_HERE = Path(__file__).parent


def render(report: Report) -> str:
    """Return the page of one run."""
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, trim_blocks=True)
    environment.filters["ms"] = tables.ms
    environment.filters["plain"] = lambda value: (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        css=(_HERE / "report.css").read_text("utf-8"),
        verdict=verdict(report),
        good=report["valid"] and not server_problems(report),
        charts=charts(report),
        tables=tables,
        models=json.dumps(report["server_models"], indent=1, ensure_ascii=False)[:20_000],
    )
