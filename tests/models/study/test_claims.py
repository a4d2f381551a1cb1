"""A published claim counts as found only where this model could have shown otherwise, and each fact once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from models.study import claims
from models.study.result import Finding
from models.study.study import Study
from tests.models.study.planted import planted_study


def findings() -> tuple[Finding, ...]:
    return (
        Finding("lower layers matter more", "yes", "−0.3", True, "Clear.", claims.DEPTH),
        Finding("a whole layer can go", "any", "8 of 12", True, "Clear.", claims.DEPTH),
        Finding("word order", "yes", "no heads", False, "None.", ""),
        Finding("term match lost", "yes", "–", None, "None.", claims.MATCHING_LOST),
    )


def test_claims_that_the_training_decides_are_built_in_not_found(tmp_path: Path) -> None:
    study: Study = planted_study(tmp_path, queries=3, titles=3)

    other = claims.scored(findings(), study)
    shipped = claims.scored(findings(), dataclasses.replace(study, model=None))

    assert [f.verdict for f in other] == ["found", "found", "not found", "open"]
    assert [f.verdict for f in shipped] == ["built in", "built in", "not found", "not testable here"]
    assert "grown to twelve" in shipped[0].reason
    assert "_start_by_matching" in shipped[3].reason


def test_claims_of_one_fact_count_once(tmp_path: Path) -> None:
    study = planted_study(tmp_path, queries=3, titles=3)
    text = claims.conclusion(claims.scored(findings(), dataclasses.replace(study, model=None)))

    assert text.startswith("The 4 published claims come to 3 facts.")
    assert "Built in: 1 (the lower layers do the work (2 claims))." in text
    assert "Found" not in text
