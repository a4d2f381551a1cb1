"""Small random checkpoints of every family, with tokenizers of each kind."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedModel

from tests import decoders as causal
from tests import modernberts
from tests.checkpoints import SHAPE, WITHOUT_DROPOUT, WORDS, random_classifier, write_vocabulary

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "deberta-v2")
ROBERTAS = ("roberta", "xlm-roberta", "camembert")

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BERT_SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
DEBERTA = {
    "relative_attention": True,
    "position_biased_input": False,
    "position_buckets": 16,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
}
"""As every published DeBERTa-v3 has it, with fewer buckets."""

TEXT = [
    *WORDS,
    *(f"{a} {b}, {a}-{b}s" for a in WORDS for b in WORDS[:6]),
    "Résumé naïve 12-gauge 中文 déjà",
] * 4


def model_of(family: str, seed: int = 0, **shape: Any) -> PreTrainedModel:
    """Return a transformers classifier whose weights are large enough for heads to matter.

    shape: of BERT's config, in BERT's names; max_position_embeddings is the window.
    """
    if family == "modernbert":
        return modernberts.random_modernbert(seed, **shape)
    if family in causal.FAMILIES:
        return causal.model_of(family, seed, **shape)
    options = {"vocab_size": 400, **SHAPE, **WITHOUT_DROPOUT, **shape}
    if family in ROBERTAS:
        options = {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5} | options
        options["max_position_embeddings"] += options["pad_token_id"] + 1
    if family == "electra":
        options = {"embedding_size": 12} | options
    if family == "deberta-v2":
        options = DEBERTA | options
    if family == "distilbert":
        names = {"intermediate_size": "hidden_dim", "hidden_act": "activation"}
        options = {names.get(name, name): value for name, value in options.items()}
    model = random_classifier(family, seed, **options)
    with torch.no_grad():
        for name, part in model.named_parameters():  # some classes start biases at 0
            if name.endswith("bias"):
                part.normal_(std=0.1)
    return model


@cache
def byte_level_tokenizer() -> str:
    """A small tokenizer.json of RoBERTa's kind."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return str(tokenizer.to_str())


@cache
def unigram_tokenizer() -> str:
    """A small tokenizer.json of XLM-RoBERTa's kind."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return str(tokenizer.to_str())


@cache
def deberta_tokenizer() -> str:
    """A small tokenizer.json of DeBERTa-v2's kind."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
            normalizers.NFC(),
            normalizers.Strip(left=False, right=True),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=BERT_SPECIAL, unk_token="[UNK]", show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return str(tokenizer.to_str())


def word_piece_tokenizer() -> str:
    """A tokenizer.json of KLUE-RoBERTa's kind: BERT's in another family's checkpoint."""
    vocabulary = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", ",", *WORDS, *map(chr, range(97, 123))]
    vocabulary += [f"##{chr(code)}" for code in range(97, 123)]
    ids = {word: i for i, word in enumerate(dict.fromkeys(vocabulary))}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 0))
    tokenizer.add_special_tokens(vocabulary[:5])
    return str(tokenizer.to_str())


def write_tokenizer(directory: Path, family: str, **config: Any) -> None:
    """Write the tokenizer of a family beside a config.json. config: of tokenizer_config.json."""
    if family == "modernbert":
        modernberts.write_tokenizer(directory)
        return
    text, name = {
        "roberta": (byte_level_tokenizer, "Roberta"),
        "xlm-roberta": (unigram_tokenizer, "XLMRoberta"),
        "camembert": (unigram_tokenizer, "Camembert"),
        "deberta-v2": (deberta_tokenizer, "DebertaV2"),
    }.get(family, (None, ""))
    if text is None:
        write_vocabulary(directory)
        return
    options = {"tokenizer_class": f"{name}Tokenizer", **config}
    (directory / "tokenizer.json").write_text(text(), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(options), encoding="utf-8")


def write_family(directory: Path, family: str, seed: int = 0, **shape: Any) -> Path:
    """A checkpoint of a family as transformers writes it."""
    if family == "modernbert":
        return modernberts.write_modernbert(directory, seed, **modernberts.LIKE_OTHERS | shape)
    model_of(family, seed, **shape).save_pretrained(directory)
    write_tokenizer(directory, family)
    return directory


def edit_json(file: Path, **changes: Any) -> None:
    """Change fields of a file's object; None removes one."""
    content = json.loads(file.read_text(encoding="utf-8")) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def edit_config(directory: Path, **changes: Any) -> None:
    """Change fields of config.json; None removes one."""
    edit_json(directory / "config.json", **changes)
