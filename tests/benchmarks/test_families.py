"""Every family's shape has the same pairs in all engines, and a smaller lead than with BERT's is said."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import checkpoints, engines, families
from benchmarks.peers import ours, torch_transformers
from benchmarks.peers.pipe import read_workload
from benchmarks.workload import SHAPES


@pytest.mark.parametrize("name", families.OTHERS)
@pytest.mark.usefixtures("one_thread")
def test_ours_and_transformers_agree_on_a_small_network_of_each_family(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = replace(SHAPES[name], hidden=24, inner=48, layers=2, heads=2)
    monkeypatch.setitem(SHAPES, name, tiny)
    monkeypatch.setattr(checkpoints, "MODELS", tmp_path)

    directory = checkpoints.checkpoint(name)
    (batch,) = read_workload(checkpoints.workload("titles", name, rows=4))
    sides = {**ours.engines(directory), **torch_transformers.engines(directory)}

    wanted = sides[f"{engines.REFERENCE} [sdpa]"](batch)
    logits = {f"{engines.REFERENCE} [sdpa]": wanted, "ours fp32": sides["ours fp32"](batch)}
    assert engines.errors_against(logits)["ours fp32"] < 1e-3
    assert sides["ours bf16, from texts"](batch) == pytest.approx(sides[engines.BF16](batch), abs=1e-6)
    assert batch.inputs["token_type_ids"].any() == (name == "modernbert")


def test_a_smaller_lead_than_with_bert_and_a_missing_peer_are_said() -> None:
    def row(shape: str, engine: str, lead: float) -> dict[str, Any]:
        ratios = [lead, lead - 0.1, lead + 0.1]
        return asdict(engines.Row(SHAPES[shape].name, "titles", engine, "", 100.0, 0.5, 0.01, ratios, None))

    rows = [row("base", families.TRANSFORMERS, 2.0), row("base", families.OPENVINO, 1.3)]
    rows += [row("roberta", families.TRANSFORMERS, 2.1), row("roberta", families.OPENVINO, 1.2)]
    rows += [row("modernbert", families.TRANSFORMERS, 2.0)]
    result = {"machine": "here", "rounds": 1, "versions": {}, "rows": rows, "missing": {}}

    assert families.missed(result) == [
        "RoBERTa-base, 12 × 12 × 768: ours bf16 is 1.20 (1.10 to 1.30) × OpenVINO bf16, "
        "1.30 (1.20 to 1.40) × with BERT's shape",
        "ModernBERT-base, 22 × 12 × 768: ours bf16 against OpenVINO bf16 was not measured",
    ]
    assert "| ModernBERT-base, 22 × 12 × 768 | 2.00 (1.90 to 2.10) |  |" in families.as_markdown(result)
