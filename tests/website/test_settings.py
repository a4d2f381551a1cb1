"""docs/settings.md: it says what the code says, and it says it of every setting."""

import pytest
from pydantic import BaseModel

from headroom.service.config.settings import Settings
from website.settings import EXPERIMENTS, LIVE, PAGE, page

pytestmark = pytest.mark.more


def test_the_page_is_what_the_code_says() -> None:
    command = ".venv/bin/python -m website.settings"
    assert command in page()
    assert PAGE.read_text(encoding="utf-8") == page(), f"docs/settings.md is stale; write it again: {command}"


@pytest.mark.parametrize("model", [Settings, *LIVE.values(), *EXPERIMENTS.values()])
def test_every_setting_is_described(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        assert field.description, f"{model.__name__}.{name} needs a description"
        assert f"| `{name}` |" in page()
