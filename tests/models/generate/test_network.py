"""The generator's network against plain torch, with and without head masks."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from headroom import Classifier
from headroom.models.attention import MultiHeadAttention
from headroom.models.generate.generator import Generator
from headroom.models.generate.memory import encode_questions, memory_of, states_of
from headroom.models.generate.network import GeneratorMasks, GeneratorNetwork, Memory

QUESTIONS = ["where is a steel angle bracket for the deck?", "usb lamp", "which mouse is black and wireless"]


def memory(clf: Classifier) -> Memory:
    questions = encode_questions(clf.tokenizer, QUESTIONS)
    return memory_of(questions, states_of(clf.network, questions), clf.tokenizer.unknown)


def zeroed(
    attention: MultiHeadAttention, x: Tensor, seen: Tensor, weights: Tensor, *, causal: bool
) -> Tensor:
    """Return an attention's output for one question, each head's probabilities times its weight."""
    size = attention.head_size
    heads = []
    for head in range(attention.heads):
        rows = slice(head * size, (head + 1) * size)
        query = F.linear(x, attention.query.weight[rows], attention.query.bias[rows])
        key = F.linear(seen, attention.key.weight[rows], attention.key.bias[rows])
        value = F.linear(seen, attention.value.weight[rows], attention.value.bias[rows])
        scores = query @ key.T / math.sqrt(size)
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
        heads.append(scores.softmax(-1) * weights[head] @ value)
    joined: Tensor = attention.output(torch.cat(heads, -1))
    return joined


def plain_states(
    network: GeneratorNetwork, ids: Tensor, states: Tensor, decoder: Tensor, cross: Tensor
) -> Tensor:
    """Return what leaves the last layer for one query of n pieces, (n, D)."""
    x = network.entry_norm(network.words[0][ids] + network.positions[: len(ids)])
    for number, layer in enumerate(network._layers()):
        entering = layer.own_norm(x)
        x = x + zeroed(layer.own, entering, entering, decoder[number], causal=True)
        x = x + zeroed(layer.cross, layer.cross_norm(x), states, cross[number], causal=False)
        x = x + layer.down(F.gelu(layer.up(layer.units_norm(x))))
    normed: Tensor = network.final_norm(x)
    return normed


def test_masks_of_a_batch_equal_zeroed_probabilities_in_plain_torch(
    writer: Classifier, generator: Generator
) -> None:
    network = generator.network
    questions = memory(writer)
    ids = torch.randint(5, 60, (3, 6), generator=torch.manual_seed(1))
    decoder = torch.ones(3, 2, 4)
    cross = torch.ones(3, 2, 4)
    decoder[0, 1, 2] = 0
    decoder[2] = 0
    cross[1, 0] = 0
    cross[2, 1, 1:] = 0.5
    with torch.inference_mode():
        x, _ = network(ids, network.begin(questions), GeneratorMasks(decoder, cross))
        whole, _ = network(ids, network.begin(questions))
        for row in range(3):
            states = questions.states[row, questions.present[row]]
            expected = plain_states(network, ids[row], states, decoder[row], cross[row])
            torch.testing.assert_close(x[row], expected, atol=1e-5, rtol=0)
            assert (whole[row] - x[row]).abs().max() > 1e-3  # the mask acts


def test_probabilities_sum_to_one_and_special_tokens_are_not_copied(
    writer: Classifier, generator: Generator
) -> None:
    network = generator.network
    questions = memory(writer)
    with torch.inference_mode():
        ids = torch.zeros(3, 1, dtype=torch.int64)
        x, _ = network(ids, network.begin(questions))
        probabilities = network.log_probabilities(ids, x, questions)[:, 0].exp()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(3))
    copied = probabilities[:, len(network.pieces) :]
    assert (copied[questions.pieces < 0] == 0).all()
    assert (copied[questions.pieces >= 0] > 0).all()
