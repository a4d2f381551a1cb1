"""A small checkpoint with a random generator."""

from pathlib import Path

import pytest

from headroom import Classifier
from headroom.models.generate.generator import Generator
from tests.generators import with_generator


@pytest.fixture(scope="session")
def writer(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    return with_generator(tiny_checkpoint, tmp_path_factory.mktemp("generator"))


@pytest.fixture
def generator(writer: Classifier) -> Generator:
    return writer.checked_generator()
