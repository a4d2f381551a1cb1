"""A typed client, generated from the OpenAPI document of a running service."""

from __future__ import annotations

from pathlib import Path

import pytest

from models import Classifier, HeadMask
from tests.clients.environments import run
from tests.service.api.test_examples import OPERATION_IDS
from tests.service.running import Server


def test_a_generated_client_scores_a_pair_and_reads_an_error(
    server: Server, clf: Classifier, tmp_path: Path
) -> None:
    # It fails if the generator warns about anything in the document.
    client = run("openapi", "generated.py", url=server.url, directory=str(tmp_path))

    assert set(OPERATION_IDS.values()) <= set(client["operations"])
    pair = [("angle bracket", "steel bracket")]
    for case, spec in (("score", "none"), ("pairs", "2.0")):
        expected = clf.score(pair, HeadMask.parse(spec, layers=3, heads=4))
        assert client[case] == {
            "type": "ScoreResponse",
            "score": pytest.approx(float(expected.score[0]), abs=0.02),
            "label": clf.grades[expected.grade[0]],
            "mask": spec,
        }
    assert client["error"] == {"type": "Error", "kind": "invalid_request", "param": "variant"}
