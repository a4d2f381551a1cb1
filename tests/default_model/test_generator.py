"""The training of the query generator on a few questions and a small network."""

from pathlib import Path

import torch

from default_model.generator import Rounds, examples_of, loss_of, output_pieces
from default_model.questions import Asked
from headroom import Classifier
from headroom.models.generate.network import GeneratorConfig, GeneratorNetwork

PAIRS = [
    Asked("the steel angle bracket", "steel angle bracket", "made"),
    Asked("a lamp and black", "black lamp", "made"),
    Asked("a cable for the phone", "phone charger", "made"),
] * 40


def test_a_short_training_learns_to_copy_and_to_write(clf: Classifier, tmp_path: Path) -> None:
    examples = examples_of(clf, PAIRS, tmp_path / "cache.pt")
    again = examples_of(clf, PAIRS, tmp_path / "cache.pt")  # from the cache
    assert all(torch.equal(one.states, other.states) for one, other in zip(examples, again, strict=True))
    pieces = output_pieces(examples)
    end = clf.tokenizer.template.after[-1]
    charger = clf.tokenizer.encode_texts(["charger"])["charger"].ids
    assert end in pieces
    assert torch.frombuffer(bytearray(charger), dtype=torch.int32)[0] in pieces
    torch.manual_seed(0)
    shape = GeneratorConfig(1, 4, 32, 64, 16, len(pieces), clf.tokenizer.template.before[0], end)
    network = GeneratorNetwork(shape, pieces, clf.network.word_embeddings.float())
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    losses = []
    for number in range(60):
        batch = Rounds(examples, clf.tokenizer.unknown, seed=0)(number)[0]
        loss = loss_of(network, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.2 < losses[0]
