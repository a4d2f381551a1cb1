"""A killed study goes on where it was, never with another model's numbers; and sharing layers between masks
does not change a single answer."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headroom import Classifier, HeadMask
from headroom.models.compress.prune import prune
from headroom.models.selection import RowMasks
from headroom.models.study import runner
from headroom.models.study.runner import Runner, identity_of
from tests.checkpoints import write_checkpoint
from tests.models.study.data import judged


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Makes parts small, and counts those that are computed; after `most` the user presses Ctrl-C."""
    parts, original = SimpleNamespace(done=0, most=1000), runner.logits_under

    def counting(*arguments: Any) -> np.ndarray:
        if parts.done == parts.most:
            raise KeyboardInterrupt
        parts.done += 1
        return original(*arguments)

    monkeypatch.setattr(runner, "BLOCK", 8)
    monkeypatch.setattr(runner, "BATCH_TOKENS", 128)
    monkeypatch.setattr(runner, "logits_under", counting)
    return parts


@pytest.fixture
def classifier(tiny_checkpoint: Path) -> Classifier:
    return Classifier.load(tiny_checkpoint, dtype="float32")


@pytest.mark.usefixtures("one_thread")
def test_a_stopped_run_computes_only_what_is_missing(
    classifier: Classifier, parts: SimpleNamespace, tmp_path: Path
) -> None:
    masks = many(3, 4)
    expected = Runner(classifier).logits(judged(), masks)
    every, parts.done, parts.most = parts.done, 0, 5
    with pytest.raises(KeyboardInterrupt):
        Runner(classifier, cache=tmp_path).logits(judged(), masks)
    for thread in threading.enumerate():  # nobody waits for them after Ctrl-C
        if "ThreadPoolExecutor" in thread.name:
            thread.join(60)
    assert len(list(tmp_path.glob("*.npy"))) == 5 < every

    parts.most = every
    for _ in range(2):  # nothing is left to compute for the second one
        assert np.array_equal(Runner(classifier, cache=tmp_path).logits(judged(), masks), expected)
        assert parts.done == every


def test_a_truncated_cache_file_is_computed_again(
    classifier: Classifier, parts: SimpleNamespace, tmp_path: Path
) -> None:
    masks = many(3, 4)
    expected = Runner(classifier, cache=tmp_path).logits(judged(), masks)
    broken = sorted(tmp_path.glob("*.npy"))[:2]
    broken[0].write_bytes(broken[0].read_bytes()[:-20])
    broken[1].write_bytes(b"")
    before = parts.done
    assert np.array_equal(Runner(classifier, cache=tmp_path).logits(judged(), masks), expected)
    assert parts.done == before + 2


def test_cached_results_of_other_weights_or_data_are_not_used(
    classifier: Classifier, parts: SimpleNamespace, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "other", seed=1)
    names = [
        identity_of(tiny_checkpoint, classifier),
        identity_of(other, Classifier.load(other, dtype="float32")),
        identity_of(tiny_checkpoint, Classifier.load(tiny_checkpoint, dtype="bfloat16")),
    ]
    assert len(set(names)) == 3
    for identity, seed in ((names[0], 0), (names[1], 0), (names[2], 0), (names[0], 1)):
        before = parts.done
        Runner(classifier, tmp_path / "c", identity).logits(judged(seed=seed), many(3, 4))
        assert parts.done > before


def test_a_corrected_order_of_grades_takes_no_columns_of_the_wrong_one(
    classifier: Classifier, reversed_clf: Classifier, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    first, second = (
        Runner(one, tmp_path, identity_of(tiny_checkpoint, one)).logits(judged(), many(3, 4)[:2])
        for one in (classifier, reversed_clf)
    )
    np.testing.assert_array_equal(first[..., ::-1], second)


def many(layers: int, heads: int) -> list[np.ndarray]:
    """None; each head alone; whole layers from below and above; random ones; weights between 0 and 2."""
    none = np.ones((layers, heads), np.float32)
    masks = [none]
    for layer, head in np.ndindex(layers, heads):
        masks.append(none.copy())
        masks[-1][layer, head] = 0
    for layer in range(layers):
        masks += [none.copy(), none.copy()]
        masks[-2][: layer + 1] = 0
        masks[-1][layer:] = 0
    for seed in range(12):
        spec = f"random:0.{seed % 9 + 1}@{seed}"
        masks.append(HeadMask.parse(spec, layers=layers, heads=heads).matrix)
    masks.append(np.random.default_rng(0).uniform(0, 2, (layers, heads)).astype(np.float32))
    return masks


def one_by_one(classifier: Classifier, masks: list[np.ndarray]) -> np.ndarray:
    encoded = classifier.tokenizer.encode(judged().pairs)
    return np.stack([classifier.forward(encoded, RowMasks(mask)) for mask in masks])


def test_a_deterministic_model_gives_the_very_same_bits(tiny_checkpoint: Path) -> None:
    classifier = Classifier.load(tiny_checkpoint, deterministic=True)
    masks = many(3, 4)
    assert np.array_equal(Runner(classifier).logits(judged(), masks), one_by_one(classifier, masks))


def test_masks_of_a_pruned_checkpoint_keep_the_old_numbers(tiny_checkpoint: Path, tmp_path: Path) -> None:
    gone = HeadMask.parse("0.1,1.*,2.0-2", layers=3, heads=4)
    prune(tiny_checkpoint, tmp_path / "pruned", gone)
    whole = Classifier.load(tiny_checkpoint, dtype="float32")
    pruned = Classifier.load(tmp_path / "pruned", dtype="float32")
    masks = many(3, 4)
    expected = one_by_one(whole, [mask * gone.matrix for mask in masks])
    assert Runner(pruned).logits(judged(), masks) == pytest.approx(expected, abs=1e-4)
