"""Generates a client from the service's OpenAPI document, and scores a pair with it.

ARGUMENTS: url of the service, directory for the client.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ARGUMENTS: dict[str, str] = json.loads(os.environ["ARGUMENTS"])
PACKAGE = "generated_client"
PROGRAMS = Path(sys.executable).parent


def generate() -> None:
    """Generate the client. Raises if the generator warns about anything in the document."""
    subprocess.run(
        [
            PROGRAMS / "openapi-python-client",
            "generate",
            *("--url", f"{ARGUMENTS['url']}/openapi.json", "--meta", "none", "--fail-on-warning"),
            *("--output-path", Path(ARGUMENTS["directory"]) / PACKAGE),
        ],
        env=os.environ | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"},  # it formats with its own ruff
        stdout=sys.stderr,
        check=True,
    )


def score(**fields: Any) -> dict[str, Any]:
    """Score with the client; return the answer's type, and what a program would read of it."""
    models = importlib.import_module(f"{PACKAGE}.models")
    call = importlib.import_module(f"{PACKAGE}.api.scoring.score")
    client = importlib.import_module(f"{PACKAGE}.client").Client(base_url=ARGUMENTS["url"])
    if "off" in fields:
        fields["head_mask"] = models.ScoreRequestHeads(off=fields.pop("off"))
    answer = call.sync(client=client, body=models.ScoreRequest(**fields))
    read: dict[str, Any] = {"type": type(answer).__name__}
    if isinstance(answer, models.Error):
        return read | {"kind": answer.error.type_, "param": answer.error.param}
    (result,) = answer.results
    return read | {"score": result.score, "label": result.label, "mask": answer.head_mask.spec}


def operations() -> list[str]:
    """Return the names of the client's calls."""
    folder = Path(ARGUMENTS["directory"]) / PACKAGE / "api"
    return sorted(file.stem for file in folder.glob("*/*.py") if file.stem != "__init__")


generate()
sys.path.insert(0, ARGUMENTS["directory"])
read = {
    "operations": operations(),
    "score": score(query="angle bracket", titles=["steel bracket"]),
    "pairs": score(pairs=[["angle bracket", "steel bracket"]], off=[[2, 0]]),
    "error": score(query="angle bracket", titles=["x"], variant="none-such"),
}
print(json.dumps(read))
