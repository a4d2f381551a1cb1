"""The latency table says what was measured, interpolates between, and is not used for another model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from models import Classifier, ModelError
from models.study.cost import report
from models.study.latency import LatencyTable, read_table
from models.study.timing import _batch, measure
from tests.models.study.latencies import linear_table


@pytest.fixture(scope="module")
def classifier(tiny_checkpoint: Path) -> Classifier:
    return Classifier.load(tiny_checkpoint, "cpu", "float32")


@pytest.fixture(scope="module")
def measured(classifier: Classifier) -> LatencyTable:
    return measure(classifier, sequence_tokens=16, tokens=(32, 64), rounds=1)


def test_every_count_that_can_be_kept_has_a_time(measured: LatencyTable) -> None:
    assert measured.heads == (0, 1, 2, 3, 4)
    assert measured.units == (16, 32, 48, 64)
    assert measured.attention.shape == measured.attention_first.shape == (2, 5)
    assert measured.feed_forward.shape == (3, 4)  # 16 rows too, the first tokens of small batches
    assert all((part > 0).all() for part in (measured.attention, measured.feed_forward, measured.other))
    assert {tokens for _, _, tokens, _ in measured.checked} == {64}
    assert measured.about["threads"] == 1


def test_between_measured_counts_and_tokens_times_are_interpolated(classifier: Classifier) -> None:
    table = linear_table(classifier.config)
    two = dataclasses.replace(
        table, tokens=(100, 200), rows=(100, 200), other=np.array([1.0, 2.0]),
        **{name: np.concatenate([getattr(table, name), 2 * getattr(table, name)])
           for name in ("attention", "attention_first", "feed_forward")},
    )  # fmt: skip

    assert table.layer(2, 12, 100) == pytest.approx(0.5 + 2 + 0.5 + 3)
    assert two.layer(2, 12, 150) == pytest.approx(1.5 * table.layer(2, 12, 100))
    assert two.layer(2, 12, 400) == pytest.approx(4 * table.layer(2, 12, 100))  # in proportion beyond
    assert two.network([(2, 8)], 400) == pytest.approx(4 * table.network([(2, 8)], 100))
    assert two.layer(2, 12, 10) == pytest.approx(table.layer(2, 12, 100))  # but not below
    assert table.network([(2, 8), (1, 16)], 100) == pytest.approx(
        1 + (0.5 + 2 + 0.5 + 2) + (0.5 + 1 + 0.5 + 4)
    )


def test_the_last_layers_second_half_has_only_first_tokens(measured: LatencyTable) -> None:
    assert measured.feed_forward_half(64, 64, last=True) == pytest.approx(
        float(np.interp(64 / 16, measured.rows, measured.feed_forward[:, -1]))
    )


def test_the_first_tokens_of_a_few_long_texts_cost_what_the_filled_pack_costs(
    measured: LatencyTable, classifier: Classifier
) -> None:
    assert len(_batch(classifier, 64, 16).first_token) == measured.rows[0] == 16
    assert measured.feed_forward_half(64, 64, last=True) == measured.feed_forward[0, -1]


def test_the_table_has_the_tokens_that_its_batches_of_long_texts_really_hold(classifier: Classifier) -> None:
    table = measure(classifier, sequence_tokens=24, tokens=(8, 32, 64), rounds=1)

    assert table.tokens == (24, 72)  # one and three texts
    assert table.rows == (16, 24, 72)
    assert _batch(classifier, 72, 24).lengths.tolist() == [24, 24, 24]


def test_a_table_survives_its_file_and_is_refused_for_another_model(
    measured: LatencyTable, classifier: Classifier, tmp_path: Path
) -> None:
    result = report.result(measured)
    file = tmp_path / "cost.json"
    file.write_text(result.files["cost.json"])

    again = read_table(file, classifier)

    assert again.to_json() == measured.to_json() == result.json["cost"]
    content = json.loads(file.read_text())
    content["cost"]["about"]["hidden_size"] = 768
    file.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="is for layers of width 768"):
        read_table(file, classifier)
    content["cost"]["attention"][0][0] = -1
    file.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="attention must hold positive seconds"):
        read_table(file, classifier)
    with pytest.raises(ModelError, match="does not exist"):
        read_table(tmp_path / "none.json", classifier)


def test_the_report_can_be_drawn(measured: LatencyTable) -> None:
    result = report.result(measured)
    assert "4 heads, 64 units" in result.conclusion
    for section in result.sections:
        for figure in section.figures:
            figure.draw().canvas.draw()
