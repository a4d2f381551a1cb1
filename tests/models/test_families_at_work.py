"""What a user does with a checkpoint works for every family: quantize, train, study, look at attention."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from headroom import HeadMask
from headroom.models.compress.prune import prune
from headroom.models.study import kinds
from headroom.models.study.search.plans import gradients
from tests import decoders, own_code
from tests.checkpoints import load, random_pairs, write_int8
from tests.families import write_family
from tests.models.study.data import judged, study
from tests.models.training.test_tuning import short_run, tune, write_pairs

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ("roberta", "xlm-roberta", "electra", "distilbert", "deberta-v2", "modernbert", *own_code.FAMILIES)
MASK = HeadMask.parse("0.1,1.*", layers=3, heads=4)


@pytest.fixture(scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family: str = request.param
    write, directory = write_family, tmp_path_factory.mktemp("family") / family
    if family in own_code.FAMILIES:
        write = own_code.write_own_code
    if family in decoders.FAMILIES:
        write = partial(decoders.write_decoder, causal=False, template=decoders.SHORT, num_labels=5)
    write(directory, family, seed=1)
    usual = load(directory).score(random_pairs(50)).logits.mean(0)
    tensors = load_file(directory / "model.safetensors")
    for bias in tensors.keys() & {"classifier.bias", "classifier.out_proj.bias"}:
        tensors[bias] -= torch.from_numpy(usual)  # so that every grade is given to some pairs
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


encoders = pytest.mark.parametrize("checkpoint", FAMILIES, indirect=True)


@encoders
def test_an_int8_checkpoint_scores_as_its_source_and_can_be_pruned(checkpoint: Path, tmp_path: Path) -> None:
    source, pairs = load(checkpoint), random_pairs(100)
    write_int8(checkpoint, tmp_path / "int8")
    prune(tmp_path / "int8", tmp_path / "pruned", MASK)

    for clf, mask in (
        (load(tmp_path / "int8"), None),
        (load(tmp_path / "int8"), MASK),
        (load(tmp_path / "pruned"), None),
    ):
        exact = source.score(pairs, MASK if "pruned" in clf.name else mask)
        assert clf.network.number_format == "int8"
        difference = clf.score(pairs, mask).logits - exact.logits
        assert np.sqrt(np.square(difference).mean()) < 0.25 * exact.logits.std(0).mean()  # BERT: 0.14


@encoders
def test_training_goes_on_from_the_checkpoint_and_writes_one_of_its_family(
    checkpoint: Path, tmp_path: Path
) -> None:
    data = write_pairs(tmp_path / "pairs.csv", queries=20)
    options = short_run(data, checkpoint, tmp_path / "mine", epochs=3)
    metrics = tune(options)

    assert metrics["loss"]["training"]["after"] < metrics["loss"]["training"]["before"]
    source, trained = load(checkpoint), load(options.out)
    assert trained.grades == ("no", "maybe", "yes")
    assert (trained.config.family, trained.max_tokens) == (source.config.family, 64)
    weights = load_file(options.out / "model.safetensors")
    assert weights.keys() == load_file(checkpoint / "model.safetensors").keys()


@pytest.mark.parametrize("checkpoint", [*FAMILIES, *decoders.FAMILIES], indirect=True)
def test_roles_and_gradients_are_found(checkpoint: Path, tmp_path: Path) -> None:
    clf = load(checkpoint)
    result = kinds.run("roles", study(clf, tmp_path, judged(queries=3)))

    found = result.json["roles"]
    assert {"term_match", "next_word", "previous_word", "segmentation", "special"} <= found.keys()
    assert all(len(found[role]) == 12 for role in ("special", "next_word"))
    found = gradients(clf, clf.tokenizer.encode(random_pairs(6)), np.arange(6) % 3)
    assert np.abs(found.heads).max() > 0
