"""The bill of materials that `make sbom` writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / ".venv-audit" / "bin" / "cyclonedx-py"


@pytest.mark.skipif(
    not TOOL.exists() and "CI" not in os.environ, reason="needs the tools of `make sbom`: run it once"
)
def test_the_bill_names_us_and_all_that_we_need(tmp_path: Path) -> None:
    file = tmp_path / "sbom.json"
    command = [TOOL, "environment", "--pyproject", ROOT / "pyproject.toml", "--no-validate", "-o", file]
    subprocess.run([*command, sys.executable], check=True, capture_output=True)
    bill = json.loads(file.read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "headroom")
    listed = {component["name"].lower().replace("_", "-"): component for component in bill["components"]}
    for requirement in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        name = re.split(r"[^\w-]", requirement)[0].lower()
        assert listed[name]["version"], name
        assert listed[name]["purl"].startswith(f"pkg:pypi/{name}@")
