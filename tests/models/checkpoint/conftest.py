"""A checkpoint of every family."""

from pathlib import Path

import pytest

from tests import families
from tests.families import write_family


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("families")
    return {family: write_family(directory / family, family) for family in families.FAMILIES}
