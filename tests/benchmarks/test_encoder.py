"""The benchmark runs, counts what it says it counts. No thresholds on time."""

import numpy as np
import pytest

from benchmarks import decoder, encoder
from benchmarks.measure import Ratio, alternate, ratio
from benchmarks.workload import Shape, document_lengths, query_title_lengths, useful_flops

pytestmark = pytest.mark.more

TINY = Shape("tiny", hidden=24, inner=48, vocabulary=100, layers=2, heads=2)


@pytest.mark.usefixtures("one_thread")
def test_a_run_has_a_line_for_every_engine_and_the_targets() -> None:
    report = encoder.measure(rounds=2, shapes={"base": TINY})

    assert [*report.tables] == ["tiny, titles", "tiny, documents"]
    for lines in report.tables.values():
        assert len(lines) == 9
        assert lines[0][f"× {encoder.OURS}"] == "1.00 (1.00 to 1.00)"
        assert sum(bool(line["saved"]) for line in lines) == 6
    titles = [row.name for row in report.rows if row.name.startswith("tiny, titles")]
    assert titles == [
        "tiny, titles: share of the limit",
        "tiny, titles: cost of masks",
        "tiny, titles: time saved for FLOPs removed, heads or whole layers",
        "tiny, titles: time saved for FLOPs removed, half of the units",
    ]


@pytest.mark.usefixtures("one_thread")
def test_the_decoder_is_right_whether_its_titles_share_their_beginning_or_not() -> None:
    shape = decoder.SHAPE | {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    report = decoder.measure(rounds=1, shape=shape | {"head_dim": 16, "vocab_size": 300})
    (lines,) = report.tables.values()
    errors = {line["engine"]: float(line["error"].rstrip("%")) for line in lines}
    assert [row.name for row in report.rows] == ["20 titles a request: × transformers bf16"]
    assert max(errors[decoder.OURS], errors[decoder.APART]) <= 2 * errors[decoder.BF16] + 1


def test_sides_take_turns_and_ratios_are_round_by_round() -> None:
    calls: list[str] = []
    alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3)
    assert calls == ["a", "b"] * 4

    found = ratio({"a": [1.0, 2.0, 1.0], "b": [2.0, 2.0, 4.0]}, fast="a", slow="b")
    assert found == Ratio(2.0, 1.0, 4.0)


def test_useful_flops_are_those_of_the_definition() -> None:
    lengths = np.array([3, 5])
    expected = 0
    for n in lengths:
        lower = 4 * 2 * n * 24 * 24 + 2 * (2 * n * n * 24) + 2 * 2 * n * 24 * 48
        # The last layer: keys and values of all tokens; query, W^O and feed-forward of the first alone.
        last = 2 * 2 * n * 24 * 24 + 2 * 2 * 24 * 24 + 2 * (2 * n * 24) + 2 * 2 * 24 * 48
        expected += lower + last
    assert useful_flops(TINY, lengths) == expected
    feed_forward = 2 * 2 * 8 * 24 * 48 + 2 * 2 * 2 * 24 * 48
    assert useful_flops(TINY, lengths, 0.0) == feed_forward
    assert useful_flops(TINY, lengths, [0.5, 0.5]) == (expected + feed_forward) / 2


def test_lengths_are_those_of_product_search() -> None:
    lengths = query_title_lengths(20_000)
    assert abs(lengths.mean() - 25) < 0.5
    assert abs(np.quantile(lengths, 0.95) - 39) <= 2
    assert abs(np.quantile(lengths, 0.99) - 48) <= 2
    assert document_lengths(200).min() >= 96
    assert document_lengths(200).max() == 128
