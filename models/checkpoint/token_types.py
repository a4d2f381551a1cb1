"""Which token types transformers passes to the network: those of the post-processor, or 0 for all tokens."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, processors

from models.checkpoint.pair_template import PairTemplate
from models.checkpoint.tokenizer_options import FILE, read_options, tokenizer_class
from models.errors import UnsupportedCheckpoint

_PASSED = {"BertTokenizer", "ElectraTokenizer", "ConvBertTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer"}
_NOT_PASSED = {
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
    "CamembertTokenizer",
    "DistilBertTokenizer",
    "MPNetTokenizer",
}


def gives_types(directory: Path) -> bool | None:
    """Return whether transformers passes the post-processor's token types to the network.

    None if its releases differ: without model_input_names, transformers 4 passes those of a tokenizer of a
    general class, transformers 5 does not.
    """
    options = read_options(directory)
    names = options.get("model_input_names")
    if names is None:
        name = tokenizer_class(directory, options)
        return True if name in _PASSED else False if name in _NOT_PASSED else None
    if not isinstance(names, list):
        raise UnsupportedCheckpoint(f"{directory / FILE}: model_input_names is {names!r}; it must be a list")
    return "token_type_ids" in names


def check_types(directory: Path) -> None:
    """Refuse a tokenizer if nobody can tell which token types its network was trained with."""
    if gives_types(directory) is None:
        name = tokenizer_class(directory, read_options(directory))
        raise UnsupportedCheckpoint(
            f"{directory / FILE} has no model_input_names, and its class is {name}: transformers 4 passes "
            "the title's token types to the model, transformers 5 does not. Write down what it was trained "
            'with: "model_input_names": ["input_ids", "token_type_ids", "attention_mask"], or without the '
            "second"
        )


def without_types(tokenizer: Tokenizer) -> Tokenizer:
    """Give all tokens of a pair type 0."""
    template = PairTemplate.of(tokenizer)
    if not template.two_segments:
        return tokenizer
    parts = {"before": template.before, "between": template.between, "after": template.after}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["before", "$A", "after"],
        pair=["before", "$A", "between", "$B:0", "after"],
        special_tokens=[
            {"id": name, "ids": list(ids), "tokens": [tokenizer.id_to_token(id_) for id_ in ids]}
            for name, ids in parts.items()
        ],
    )
    return tokenizer
