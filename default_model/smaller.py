"""Makes a smaller sibling of the shipped model: what a search kept, trained on the model's own answers.

    headroom study search --what heads,units --speedup 2.2 --data D --holdout H --out runs/fast
    python -m default_model.fetch --out runs/data
    python -m default_model.smaller --mask runs/fast/mask.json --name fast --data runs/data
    python -m default_model.smaller --start models/default/networks/fast --name fast --data runs/data

The last form goes on from a network that is there, for a model whose weights have changed a little.

A third of the pairs are people's questions with names (`default_model.asked_names`). Half of the others are
drawn as the model's own second phase draws them, and half as its last recipe does. No grade is read. A
network that keeps all layers is also taught what leaves them (`default_model.layer_states`). The word
embeddings, most of the file, stay the model's: the new checkpoint's index names the model's file.
"""

import argparse
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from default_model.asked_names import AskedNames
from default_model.build import SECOND
from default_model.drawers import all_sources
from default_model.layer_states import StatesObjective
from default_model.mixture import Sources, mixed_groups
from default_model.recipes import CONTRADICTIONS
from default_model.tuning import PAIRS_PER_ROUND
from headroom.models.checkpoint.config import ModelConfig, read_config
from headroom.models.checkpoint.files import INDEX, OF_PARENT, readable_as_usual
from headroom.models.checkpoint.tensors import TensorDict, read_tensors
from headroom.models.classifier import Classifier
from headroom.models.commands.options import read_form
from headroom.models.compress.prune import cut, write_checkpoint
from headroom.models.errors import ModelError
from headroom.models.learner import Learner
from headroom.models.quality.labelled import query_key
from headroom.models.training.distil.lessons import (
    Lesson,
    Objective,
    Scale,
    TeacherTargets,
    lessons_of,
    lists_of,
)
from headroom.models.training.distil.pairs import Pair
from headroom.models.training.distil.teacher import Teacher
from headroom.models.training.distil.teaching import WARM_UP, WORDS, Student, peak_rate, teach
from headroom.models.training.loop import Schedule, read_saved

SEED = 2


def mean_shares(mixtures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean share of each kind of pairs over mixtures, each scaled to a sum of 1."""
    shares = defaultdict[str, float](float)
    for mixture in mixtures:
        whole = sum(mixture.values())
        for kind, share in mixture.items():
            shares[kind] += share / whole / len(mixtures)
    return dict(shares)


ASKED = 1 / 3
"""The share of people's questions with names that may answer them."""

SHARES = {"asked": ASKED} | {
    kind: (1 - ASKED) * share for kind, share in mean_shares([SECOND.shares, CONTRADICTIONS]).items()
}


def pairs_of(sources: Sources, index: int) -> list[tuple[str, str]]:
    """Return the pairs of a round."""
    groups = mixed_groups(sources, SHARES, count=PAIRS_PER_ROUND, seed=SEED, index=index)
    return [(example.query, example.title) for group in groups for example in group]


def write_network(model: Path, student: Student, name: str) -> None:
    """Write a trained network to `networks/NAME` beside the model's weights, in float16."""
    out = model / "networks" / name
    halves = {part: tensor.half() for part, tensor in student.tensors.items()}
    write_checkpoint(model, out, halves, student.config)
    share_words(out)


def share_words(directory: Path) -> None:
    """Leave out of a network's weights the word embeddings, which its model's file has, and write an index.

    directory: `networks/NAME` beside the model's weights.
    """
    whole = directory / "model.safetensors"
    own = load_file(whole)
    del own[WORDS]
    save_file(own, directory / "network.safetensors", {"format": "pt"})
    index = {"weight_map": dict.fromkeys(own, "network.safetensors") | {WORDS: OF_PARENT}}
    (directory / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    whole.unlink()
    readable_as_usual(directory / "network.safetensors")


def cut_network(model: Path, teacher: Classifier, form: str) -> tuple[TensorDict, ModelConfig]:
    """Return the tensors and the configuration of what a mask keeps of a model. form: a spec, or a file."""
    mask = teacher.config.parse_mask(read_form(form), teacher.stored_masks)
    # Of the checkpoint's own weights: those that are served are rounded to bfloat16.
    return cut(read_tensors(model, teacher.config), teacher.config, mask)


def starting_network(model: Path, start: Path) -> tuple[TensorDict, ModelConfig]:
    """Return the tensors and the configuration of a smaller network, with the word embeddings of a model.

    Raises ModelError if the vocabulary or the hidden size differs from the model's.
    """
    config = read_config(start)
    tensors = read_tensors(start, config)
    of_model = read_config(model)
    words = read_tensors(model, of_model)[WORDS]
    if tensors[WORDS].shape != words.shape or config.labels != of_model.labels:
        raise ModelError(f"--start {start}: not a network of {model}: vocabulary, width or grades differ")
    return tensors | {WORDS: words}, config


def taught(
    teacher: Classifier,
    tensors: TensorDict,
    config: ModelConfig,
    pairs_of_round: Callable[[int], Sequence[tuple[str, str]]],
    schedule: Schedule,
    checkpoint: Path,
) -> Student:
    """Train a network on the answers of the graded model that it was once cut from.

    tensors, config: of the network. pairs_of_round: returns the (query, title) pairs of a round. checkpoint:
    the file to go on from, if it is there.
    """
    asked = Teacher(teacher, teacher.tokenizer, states=True)

    def read(index: int) -> list[Pair]:
        return [Pair(*pair) for pair in pairs_of_round(index)]

    log_odds = TeacherTargets(asked, Scale(), same_grades=True).of(asked.answers(read(0))).scores
    scale = Scale(spread=float(log_odds.std()) or 1.0)
    targets = TeacherTargets(asked, scale, same_grades=True)

    def make_round(index: int) -> list[Lesson]:
        pairs = read(index)
        keys = [query_key(pair.query) for pair in pairs]
        lists = lists_of(pairs, keys, np.random.default_rng([SEED, index]))
        return lessons_of(pairs, lists, targets.of(asked.answers(pairs)), teacher.tokenizer)

    objective = Objective(config, scale.spread)
    if config.num_layers == teacher.config.num_layers:
        whole = teacher.network.in_plain_torch()
        done = read_saved(checkpoint)["progress"]["step"] if checkpoint.exists() else 0
        objective = StatesObjective(config, scale.spread, whole, schedule.steps, done)
    return teach(
        Learner(config, tensors).to(teacher.network.device),
        objective,
        make_round,
        schedule,
        checkpoint,
        seed=SEED,
        after_step=lambda _: None,
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/default"), help="default: %(default)s")
    network = parser.add_mutually_exclusive_group(required=True)
    network.add_argument("--mask", help="what a search kept: its mask.json")
    network.add_argument("--start", type=Path, help="the directory of a smaller network to go on from")
    parser.add_argument("--name", required=True, help="it is written to networks/NAME beside the weights")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--webquestions", type=Path, help="its directory; default: DATA/webquestions")
    parser.add_argument("--steps", type=int, default=1500, help="default: %(default)s")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")

    teacher = Classifier.load(options.model, "cpu", "bfloat16")
    if options.start is None:
        tensors, config = cut_network(options.model, teacher, options.mask)
    else:
        tensors, config = starting_network(options.model, options.start)
    words = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    asked = AskedNames(options.data, options.webquestions or options.data / "webquestions")
    sources = all_sources(options.data, [], words)
    sources = replace(sources, drawers={**sources.drawers, "asked": asked.group})
    progress = Path("runs") / f"{options.name}.pt"
    student = taught(
        teacher,
        tensors,
        config,
        partial(pairs_of, sources),
        Schedule(options.steps, peak_rate(teacher.config), warmup=options.steps // 20, decay=1 - WARM_UP),
        progress,
    )
    logging.info("loss: %.4f, at last %.4f", *student.before_and_after)
    write_network(options.model, student, options.name)
    progress.unlink()  # the next training begins anew


if __name__ == "__main__":
    main()
