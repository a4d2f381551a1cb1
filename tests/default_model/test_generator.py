"""The training of the query generator on a few questions and a small network."""

from pathlib import Path

import pytest
import torch

from default_model.generator import Batch, Rounds, examples_of, loss_of, output_pieces
from default_model.questions import Asked
from headroom import Classifier
from headroom.models.generate.network import GeneratorConfig, GeneratorNetwork
from tests.generators import random_generator

PAIRS = [
    Asked("the steel angle bracket", "steel angle bracket", "made"),
    Asked("a lamp and black", "black lamp", "made"),
    Asked("a cable for the phone", "phone charger", "made"),
] * 40


def test_the_loss_is_that_of_writing_or_copying_each_piece(clf: Classifier, tmp_path: Path) -> None:
    examples = examples_of(clf, PAIRS[:3], tmp_path / "cache.pt")
    network = random_generator(clf)
    for example in examples:
        batch = Batch([example], clf.tokenizer.unknown)
        memory = batch.memory()
        memory = type(memory)(memory.states.float(), memory.present, memory.pieces)
        pieces = example.target.tolist()
        ids = torch.tensor([[network.config.start, *pieces[:-1]]])
        with torch.no_grad():
            x, _ = network(ids, network.begin(memory))
            scores = network.log_probabilities(ids, x, memory)[0].exp()
            loss = loss_of(network, batch)
        names = [*network.pieces.tolist(), *memory.pieces[0].tolist()]
        likelihoods = [
            sum(scores[step, column].item() for column, name in enumerate(names) if name == piece)
            for step, piece in enumerate(pieces)
        ]
        known = [value for value in likelihoods if value > 0]
        expected = -torch.tensor(known).log().mean().item()
        assert loss.item() == pytest.approx(expected, rel=1e-3)


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
