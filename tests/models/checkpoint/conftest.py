"""A checkpoint of every family, those that bring code of their own among them."""

from pathlib import Path

import pytest

from tests import families, own_code
from tests.families import write_family
from tests.own_code import write_own_code


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("families")
    made = {family: write_family(directory / family, family) for family in families.FAMILIES}
    return made | {family: write_own_code(directory / family, family) for family in own_code.FAMILIES}
