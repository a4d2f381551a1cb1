"""The config.json of rerankers as they are published: whether each loads is what docs/models.md says.

published.json holds the fields that matter, and where each config was read.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.config import parse_config
from models.checkpoint.families import FAMILIES
from models.errors import UnsupportedCheckpoint

PAGE = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
MODELS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("published.json").read_text())


def row(repository: str) -> list[str]:
    """The cells of a model's row in the table of docs/models.md."""
    (line,) = re.findall(rf"^\| `{re.escape(repository)}`.*$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("repository", MODELS)
def test_a_published_model_loads_or_is_refused_as_the_page_says(repository: str) -> None:
    expected, config = (MODELS[repository][part] for part in ("expected", "config"))
    _, _, loads, evidence = row(repository)
    assert evidence == "config.json"
    assert loads.startswith("no: " if "refused" in expected else "yes")
    if "refused" in expected:
        with pytest.raises(UnsupportedCheckpoint, match=expected["refused"]):
            parse_config(config)
        return
    if expected["family"] not in FAMILIES:  # a family that is on its way
        with pytest.raises(UnsupportedCheckpoint, match="model_type"):
            parse_config(config)
        return
    shape = parse_config(config)
    assert (shape.family, shape.labels) == (expected["family"], ("LABEL_0",))
    assert (shape.num_layers, shape.num_heads) == (config["num_hidden_layers"], config["num_attention_heads"])
    assert shape.score_activation == expected.get("activation", "sigmoid")
