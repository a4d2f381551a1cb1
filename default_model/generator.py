"""Trains the query generator: a decoder on the frozen encoder's last output for the question alone.

    python -m default_model.generator --webquestions trainmodel.json --steps 3000

The encoder computes each question once, into WORK; the decoder then learns from what is kept there. A run
that was killed goes on from WORK. After a change of the encoder, `--start OUT --steps 1500` lets the old
decoder go on with the new one's output.
"""

import argparse
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from default_model.questions import Asked, read_sae4k, training_pairs
from headroom import Classifier
from headroom.models.batch import batches_by_length
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.device import autocast
from headroom.models.generate.files import read_generator, write_generator
from headroom.models.generate.memory import encode_questions, memory_of, states_of
from headroom.models.generate.network import GeneratorConfig, GeneratorNetwork, Memory
from headroom.models.training.loop import Progress, Schedule, grouped, train

log = logging.getLogger(__name__)

LAYERS = 3
UNITS = 768
MAX_PIECES = 32
DROPOUT = 0.15
RATE = 1.5e-3
BATCH_EXAMPLES = 96
TARGET_STEP = 4
QUESTION_STEP = 8
"""Queries and questions are padded to a multiple of so many pieces and tokens, and each batch has as many
examples: oneDNN compiles code for each new shape, which costs more than the padding."""

ENCODED_TOKENS = 8192

LOOK_STEPS = 200
CHOOSING_TOKENS = 2048

EXCLUDED = -1e9
"""The logarithm of no probability. It is finite, because infinite ones have no gradient."""


@dataclass(frozen=True, slots=True)
class Example:
    """A question as the encoder said it, and its query.

    states: (tokens, D) bfloat16. target: the query's pieces and the end.
    """

    question: EncodedPair
    states: Tensor
    target: Tensor

    def __len__(self) -> int:
        return len(self.question) + len(self.target)

    @property
    def bucket(self) -> tuple[int, int]:
        """Return the padded lengths of query and question."""
        target = -(-len(self.target) // TARGET_STEP) * TARGET_STEP
        return target, -(-len(self.question) // QUESTION_STEP) * QUESTION_STEP


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples of similar length."""

    pairs: Sequence[Example]
    unknown: int | None

    def memory(self) -> Memory:
        """Return what the decoder reads of the questions."""
        states = [example.states for example in self.pairs]
        memory = memory_of([example.question for example in self.pairs], states, self.unknown)
        padding = (0, max(example.bucket[1] for example in self.pairs) - memory.present.shape[1])
        return Memory(
            F.pad(memory.states, (0, 0, *padding)),
            F.pad(memory.present, padding),
            F.pad(memory.pieces, padding, value=-1),
        )

    def targets(self) -> Tensor:
        """Return the queries' pieces, (B, n) int64, −1 for padding."""
        targets = pad_sequence([example.target for example in self.pairs], batch_first=True, padding_value=-1)
        padding = max(example.bucket[0] for example in self.pairs) - targets.shape[1]
        return F.pad(targets, (0, padding), value=-1)


def examples_of(clf: Classifier, pairs: Sequence[Asked], cache: Path) -> list[Example]:
    """Return the pairs as examples. cache: a file that keeps the encoder's output."""
    questions = encode_questions(clf.tokenizer, [pair.question for pair in pairs])
    texts = clf.tokenizer.encode_texts({pair.query for pair in pairs})
    key = hashlib.sha256(clf.digest.encode() + b"".join(one.ids.tobytes() for one in questions)).hexdigest()
    joined = _kept_states(cache, key)
    if joined is None:
        joined = torch.cat(_computed_states(clf, questions))
        torch.save({"key": key, "states": joined}, cache)
    states = torch.split(joined, [len(one) for one in questions])
    examples = []
    end = clf.tokenizer.template.after[-1]
    for pair, question, own in zip(pairs, questions, states, strict=True):
        pieces = np.frombuffer(texts[pair.query].ids, np.int32)[: MAX_PIECES - 1]
        examples.append(Example(question, own, torch.tensor([*pieces.tolist(), end])))
    return examples


def _kept_states(cache: Path, key: str) -> Tensor | None:
    if not cache.exists():
        return None
    kept = torch.load(cache, weights_only=True)
    return kept["states"] if kept["key"] == key else None


def _computed_states(clf: Classifier, questions: Sequence[EncodedPair]) -> list[Tensor]:
    states = [torch.empty(0)] * len(questions)
    for rows in batches_by_length([len(one) for one in questions], ENCODED_TOKENS):
        for row, own in zip(rows, states_of(clf.network, [questions[row] for row in rows]), strict=True):
            states[row] = own.to(torch.bfloat16).clone()
    return states


def output_pieces(examples: Sequence[Example]) -> Tensor:
    """Return the pieces that a query has and its question has not, (V,) int64, ascending; the end is one."""
    written = set[int]()
    for example in examples:
        first = len(example.question.template.before)
        question = example.question.ids[first : first + example.question.query_tokens]
        written |= set(example.target.tolist()) - set(question.tolist())
    return torch.tensor(sorted(written))


def loss_of(network: GeneratorNetwork, batch: Batch) -> Tensor:
    """Return the mean negative log-likelihood of the pieces that can be written or copied."""
    memory = batch.memory()
    if not torch.is_autocast_enabled("cpu"):  # where bfloat16 is emulated
        memory = replace(memory, states=memory.states.float())
    targets = batch.targets()  # (B, n)
    ids = torch.cat([torch.full_like(targets[:, :1], network.config.start), targets[:, :-1].clamp(min=0)], 1)
    x, _ = network(ids, network.begin(memory))
    scores = network.log_probabilities(ids, x, memory)  # (B, n, V + m)
    column = torch.searchsorted(network.pieces, targets.clamp(min=0)).clamp(max=len(network.pieces) - 1)
    is_written = (network.pieces[column] == targets)[..., None]
    written = scores.gather(2, column[..., None]).masked_fill(~is_written, EXCLUDED)
    is_copied = memory.pieces[:, None] == targets[..., None]  # (B, n, m)
    copied = scores[..., len(network.pieces) :].masked_fill(~is_copied, EXCLUDED)
    likelihood = torch.cat([written, copied], 2).logsumexp(2)
    counts = (targets >= 0) & (is_written[..., 0] | is_copied.any(2))
    return -likelihood[counts].mean()


class Rounds:
    """Each round has nearly every example once, in batches of equal padded lengths and in random order."""

    def __init__(self, examples: Sequence[Example], unknown: int | None, seed: int) -> None:
        self.examples = examples
        self.unknown = unknown
        self.seed = seed

    def __call__(self, index: int) -> list[Batch]:
        """Return a round's batches. What does not fill a batch is left out, other examples each time."""
        rng = np.random.default_rng([self.seed, index])
        buckets: dict[tuple[int, int], list[Example]] = {}
        for row in rng.permutation(len(self.examples)):
            example = self.examples[row]
            buckets.setdefault(example.bucket, []).append(example)
        batches = [
            Batch(bucket[end - BATCH_EXAMPLES : end], self.unknown)
            for bucket in buckets.values()
            for end in range(BATCH_EXAMPLES, len(bucket) + 1, BATCH_EXAMPLES)
        ]
        return [batches[number] for number in rng.permutation(len(batches))]


def choosing_loss(network: GeneratorNetwork, examples: Sequence[Example], unknown: int | None) -> float:
    """Return the loss on examples without dropout."""
    network.eval()
    groups = grouped([len(example) for example in examples], batch_tokens=CHOOSING_TOKENS)
    with torch.no_grad(), autocast(torch.device("cpu")):
        batches = [Batch([examples[row] for row in rows], unknown) for rows in groups]
        parts = [(len(batch.pairs), loss_of(network, batch).item()) for batch in batches]
    network.train()
    return sum(count * loss for count, loss in parts) / len(examples)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--webquestions", type=Path, help="main/trainmodel.json of WebQuestions")
    parser.add_argument("--model", type=Path, default=Path("models/default"), help="the encoder")
    parser.add_argument("--start", type=Path, help="a checkpoint whose decoder is trained further")
    parser.add_argument("--work", type=Path, default=Path("runs/generator"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="where the weights go; default: the model's directory")
    parser.add_argument("--steps", type=int, default=3000, help="default: %(default)s")
    parser.add_argument("--rate", type=float, default=RATE, help="peak learning rate; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of every random draw")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    write_generator(options.out or options.model, trained(options))


def trained(options: argparse.Namespace) -> GeneratorNetwork:
    """Train a decoder, or go on with one, and return it. options: of the command line."""
    options.work.mkdir(parents=True, exist_ok=True)
    clf = Classifier.load(options.model, device="cpu")
    pairs = training_pairs(options.data, options.webquestions, options.seed)
    examples = examples_of(clf, pairs, options.work / "training.pt")
    choosing = examples_of(clf, read_sae4k(options.data)["choosing"], options.work / "choosing.pt")
    torch.manual_seed(options.seed)
    unknown = clf.tokenizer.unknown
    network = begun(clf, examples, options.start)
    parameters = sum(weight.numel() for weight in network.parameters())
    log.info("%d examples, %d output pieces, %d weights", len(examples), len(network.pieces), parameters)

    def look(progress: Progress) -> None:
        if progress.step % LOOK_STEPS == 0:
            log.info("step %d: choosing loss %.4f", progress.step, choosing_loss(network, choosing, unknown))
            write_generator(options.work, network)

    train(
        network,
        lambda batch: loss_of(network, batch),
        Rounds(examples, unknown, options.seed),
        Schedule(options.steps, options.rate, warmup=200, decay=0.9),
        options.work / "progress.pt",
        seed=options.seed,
        after_step=look,
    )
    log.info("choosing loss %.4f", choosing_loss(network, choosing, unknown))
    return network


def begun(clf: Classifier, examples: Sequence[Example], start: Path | None) -> GeneratorNetwork:
    """Return a new decoder for the examples' queries. start: the checkpoint whose decoder to take instead."""
    words = clf.network.word_embeddings.float()
    if start is not None:
        return read_generator(start, words, DROPOUT)
    pieces = output_pieces(examples)
    template = clf.tokenizer.template
    shape = GeneratorConfig(
        layers=LAYERS,
        heads=clf.num_heads,
        width=words.shape[1],
        units=UNITS,
        max_pieces=MAX_PIECES,
        output_pieces=len(pieces),
        start=template.before[0],
        end=template.after[-1],
    )
    return GeneratorNetwork(shape, pieces, words, DROPOUT)


if __name__ == "__main__":
    main()
