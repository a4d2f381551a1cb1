"""A killed study goes on where it was, and never with another model's numbers."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from models import Classifier
from models.study import runner
from models.study.runner import Part, Runner, identity_of, logits_of_part
from tests.checkpoints import write_checkpoint
from tests.models.study.data import judged
from tests.models.study.test_prefixes import many


class Counting(Runner):
    """Counts the parts that it computes, the last first; dies after `most`."""

    most, done = 1000, 0

    def _computed_now(self, parts: Sequence[Part]) -> Iterator[tuple[int, np.ndarray]]:
        for number, part in reversed(list(enumerate(parts))):
            if self.done == self.most:
                raise KeyboardInterrupt
            self.done += 1
            yield number, logits_of_part(self.classifier, part)


@pytest.fixture
def classifier(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Classifier:
    monkeypatch.setattr(runner, "BLOCK", 8)
    monkeypatch.setattr(runner, "BATCH_TOKENS", 128)
    return Classifier.load(tiny_checkpoint, dtype="float32")


def test_a_stopped_run_computes_only_what_is_missing(classifier: Classifier, tmp_path: Path) -> None:
    masks = many(3, 4)
    expected = Runner(classifier, judged()).logits(masks)
    first, second, third = (Counting(classifier, judged(), cache=tmp_path) for _ in range(3))
    first.most = 5
    with pytest.raises(KeyboardInterrupt):
        first.logits(masks)

    logits = second.logits(masks)
    again = third.logits(masks)

    assert np.array_equal(logits, expected)
    assert np.array_equal(again, expected)
    assert second.done > 0
    assert len(list(tmp_path.glob("*.npy"))) == 5 + second.done
    assert third.done == 0


def test_a_truncated_cache_file_is_computed_again(classifier: Classifier, tmp_path: Path) -> None:
    masks = many(3, 4)
    expected = Runner(classifier, judged(), cache=tmp_path).logits(masks)
    broken = sorted(tmp_path.glob("*.npy"))[:2]
    broken[0].write_bytes(broken[0].read_bytes()[:-20])
    broken[1].write_bytes(b"")
    counting = Counting(classifier, judged(), cache=tmp_path)
    assert np.array_equal(counting.logits(masks), expected)
    assert counting.done == 2


def test_cached_results_of_other_weights_or_data_are_not_used(
    classifier: Classifier, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "other", seed=1)
    names = {
        identity_of(tiny_checkpoint, classifier),
        identity_of(other, Classifier.load(other, dtype="float32")),
        identity_of(tiny_checkpoint, Classifier.load(tiny_checkpoint, dtype="bfloat16")),
    }
    assert len(names) == 3
    for identity in names:
        counting = Counting(classifier, judged(), cache=tmp_path / "c", identity=identity)
        counting.logits(many(3, 4))
        assert counting.done > 0
    counting = Counting(classifier, judged(seed=1), cache=tmp_path / "c", identity=identity)
    counting.logits(many(3, 4))
    assert counting.done > 0


def test_masks_come_back_in_the_order_asked_twice_if_asked_twice(classifier: Classifier) -> None:
    masks = many(3, 4)
    run = Runner(classifier, judged())
    expected = run.logits(masks)
    order = [5, 0, 5, 3]
    assert np.array_equal(run.logits([masks[i] for i in order]), expected[order])
