"""Long texts are tokenised in portions, which changes no answer."""

from __future__ import annotations

import numpy as np
import pytest

from models import Classifier
from service.scoring import encoding
from tests.service.in_process import QUERY, Service


async def test_texts_tokenised_in_turns_give_what_they_give_at_once(
    service: Service, clf: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "PORTION_CHARS", 300)
    titles = [f"steel bracket {number} " + "of wood and steel " * (number % 40) for number in range(200)]
    answer = await service.post("/v1/score", query=QUERY, titles=[*titles, *titles[:10]])
    expected = clf.score([(QUERY, title) for title in [*titles, *titles[:10]]])
    np.testing.assert_allclose(
        [row["score"] for row in answer["results"]], [float(score) for score in expected.score], atol=1e-4
    )
