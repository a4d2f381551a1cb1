"""The upper layers of a model, tuned on the states that its lower layers have served once."""

from pathlib import Path

import torch

from default_model.tuning import untuned
from default_model.upper_layers import LowerLayers
from headroom.models.checkpoint.tokenizer import PairTokenizer
from tests.checkpoints import write_checkpoint


def test_upper_layers_on_the_served_networks_states_give_the_whole_models_logits(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, num_labels=5)
    model = untuned(directory).eval()
    tokenizer = PairTokenizer.load(directory, max_tokens=32, vocab_size=model.config.vocab_size)
    pairs = tokenizer.encode([("red lamp", "usb charger"), ("angle bracket", "steel angle bracket")])
    lower = LowerLayers(model, 1)
    entering = lower.enter(pairs)
    logits = lower.logits(model, entering)
    with torch.no_grad():
        whole = model(pairs)
    torch.testing.assert_close(logits.detach(), whole, rtol=0.05, atol=0.05)  # bfloat16
    torch.testing.assert_close(entering.logits.float(), whole, rtol=0.05, atol=0.05)
    logits.sum().backward()  # type: ignore[no-untyped-call]
    assert model.weight("bert.encoder.layer.0.output.dense.weight").grad is None
    assert model.weight("bert.encoder.layer.1.output.dense.weight").grad is not None
