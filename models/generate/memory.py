"""The encoder's part of generating: what it says about a question alone."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headroom.models.batch import pack
from headroom.models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from headroom.models.generate.network import Memory
from headroom.models.network import Network
from headroom.models.selection import RowMasks


def encode_questions(tokenizer: PairTokenizer, questions: Sequence[str]) -> list[EncodedPair]:
    """Return questions as the encoder reads them alone: [CLS] question [SEP], within the window."""
    alone = tokenizer.reading_as(keep_end=False, alone=range(len(questions)))
    return alone.encode([(question, "") for question in questions])


def states_of(
    network: Network, questions: Sequence[EncodedPair], masks: RowMasks | None = None
) -> list[Tensor]:
    """Return the encoder's last output for each question, (tokens, D), in their order.

    questions: at least one. masks: of the encoder's heads, a mask for each question or one for all.
    """
    batch = pack(questions, device=network.device, deterministic=network.deterministic)
    with torch.inference_mode():
        chosen = network.selector.select(masks, batch.order)
        for x in network.hidden_states(batch, chosen, every_token=True):  # noqa: B007 - the last one is read
            pass
        packed = x[: int(batch.lengths.sum())].split_with_sizes(batch.lengths.tolist())
        network.ops.synchronize()  # as in `Network.forward`
    row_of = np.argsort(batch.order)
    return [packed[row] for row in row_of]


def memory_of(questions: Sequence[EncodedPair], states: Sequence[Tensor], unknown: int | None) -> Memory:
    """Return what a generator reads of questions.

    states: of each one, (tokens, D). unknown: the vocabulary's number of what it cannot read, which is not
    copied.
    """
    device = states[0].device
    pieces = []
    for question in questions:
        ids = torch.from_numpy(question.ids.astype(np.int64))
        first = len(question.template.before)
        ids[:first] = -1
        ids[first + question.query_tokens :] = -1
        ids[ids == (-1 if unknown is None else unknown)] = -1
        pieces.append(ids)
    present = [torch.ones(len(question), dtype=torch.bool) for question in questions]
    return Memory(
        states=pad_sequence(list(states), batch_first=True),
        present=pad_sequence(present, batch_first=True).to(device),
        pieces=pad_sequence(pieces, batch_first=True, padding_value=-1).to(device),
    )
