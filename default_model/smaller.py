"""Makes a smaller sibling of the shipped model: what a search kept, trained on the model's own answers.

    headroom study search --what heads,units --speedup 2.2 --data D --holdout H --out runs/fast
    python -m default_model.smaller --mask runs/fast/mask.json --name fast

The pairs are those of the model's own second phase, in English, Korean and Chinese; no grade is read. The
word embeddings, most of the file, stay the model's: the new checkpoint's index names the model's file.
"""

import argparse
import json
import logging
from functools import partial
from pathlib import Path

from safetensors.torch import load_file, save_file

from default_model.build import SECOND
from default_model.mixture import Sources, mixed_groups, read_sources
from default_model.tuning import JUDGED_SHARES, PAIRS_PER_ROUND
from headroom.models.checkpoint.files import INDEX, OF_PARENT, readable_as_usual
from headroom.models.classifier import Classifier
from headroom.models.commands.options import read_form
from headroom.models.compress.prune import write_checkpoint
from headroom.models.training.distil.teaching import WARM_UP, peak_rate, teach_part
from headroom.models.training.loop import Schedule

WORDS = "bert.embeddings.word_embeddings.weight"
SEED = 2


def pairs_of(sources: Sources, index: int) -> list[tuple[str, str]]:
    """Return the pairs of a round, drawn as the second phase draws them."""
    groups = mixed_groups(sources, SECOND.shares, count=PAIRS_PER_ROUND, seed=SEED, index=index)
    return [(example.query, example.title) for group in groups for example in group]


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


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/default"), help="default: %(default)s")
    parser.add_argument("--mask", required=True, help="what a search kept: its mask.json")
    parser.add_argument("--name", required=True, help="it is written to networks/NAME beside the weights")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=1500, help="default: %(default)s")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")

    teacher = Classifier.load(options.model, "cpu", "bfloat16")
    mask = teacher.config.parse_mask(read_form(options.mask), teacher.stored_masks)
    out = options.model / "networks" / options.name
    student = teach_part(
        teacher,
        mask,
        partial(pairs_of, read_sources(options.data, JUDGED_SHARES)),
        Schedule(options.steps, peak_rate(teacher.config), warmup=options.steps // 20, decay=1 - WARM_UP),
        Path("runs") / f"{options.name}.pt",
        seed=SEED,
        swaps=False,
    )
    logging.info("loss: %.4f, at last %.4f", *student.before_and_after)
    tensors = {name: tensor.half() for name, tensor in student.tensors.items()}
    write_checkpoint(options.model, out, tensors, student.config)
    share_words(out)


if __name__ == "__main__":
    main()
