"""The model families: what each one's checkpoints are, in the terms of a network of ours.

BERT's names are the canonical ones inside. A checkpoint of another family is translated when it is read, and
back when it is written; what is between knows nothing of families. Other families are refused by name.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.checkpoint.decoder import decoders
from models.checkpoint.encoders import DEBERTA, FLASH_ROBERTA, GTE, JINA_BERT, MODERNBERT, OF_CONFIG
from models.checkpoint.family import Family
from models.checkpoint.fields import need
from models.errors import UnsupportedCheckpoint

_DENSE_HEAD = {"bert.pooler.dense.": "classifier.dense.", "classifier.": "classifier.out_proj."}
_ROBERTA = Family(encoder="roberta.", names=_DENSE_HEAD, token_types=1, skips_pad=True)

FAMILIES: dict[str, Family] = {
    # Devlin et al. 2019. [CLS] q [SEP] t [SEP], types 0 and 1, WordPiece; the head reads tanh(pooler(first)).
    "bert": Family(encoder="bert."),
    # Liu et al. 2019. <s> q </s></s> t </s>, byte-level BPE; no pooler: the head has its own dense layer.
    "roberta": _ROBERTA,
    # Conneau et al. 2020. RoBERTa with Unigram pieces of 100 languages.
    "xlm-roberta": _ROBERTA,
    # Martin et al. 2020. RoBERTa with French Unigram pieces.
    "camembert": _ROBERTA,
    # Clark et al. 2020. BERT's pairs, RoBERTa's head with GELU; embeddings of 128 in the small ones.
    "electra": Family(encoder="electra.", names=_DENSE_HEAD, defaults={"embedding_size": 128}, head="gelu"),
    # Sanh et al. 2019. BERT's pairs without token types; ReLU in the head.
    "distilbert": Family(
        encoder="distilbert.",
        names={"bert.pooler.dense.": "pre_classifier."},
        layer="transformer.layer.",
        in_layer={
            "attention.self.query.": "attention.q_lin.",
            "attention.self.key.": "attention.k_lin.",
            "attention.self.value.": "attention.v_lin.",
            "attention.output.dense.": "attention.out_lin.",
            "attention.output.LayerNorm.": "sa_layer_norm.",
            "intermediate.dense.": "ffn.lin1.",
            "output.dense.": "ffn.lin2.",
            "output.LayerNorm.": "output_layer_norm.",
        },
        fields={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
        token_types=None,
        head="relu",
        reads=lambda _, shape: replace(shape, layer_norm_eps=1e-12),  # its config.json has no say in it
    ),
    # Warner et al. 2024. Pre-norm, rotary positions, GeGLU, local attention; byte-level BPE, BERT's pairs.
    "modernbert": MODERNBERT,
    # He et al. 2021. Attention to content and distance, no absolute positions; Unigram pieces, BERT's pairs.
    "deberta-v2": DEBERTA,
    # Zhang et al. 2024, GTE. Rotary positions, gated layers; XLM-RoBERTa's pieces and pairs.
    "new": GTE,
    # Günther et al. 2023. ALiBi, gated layers; byte-level BPE. Its model_type is "bert".
    "jina-bert": JINA_BERT,
    # Jina's second reranker: XLM-RoBERTa with the tensors of flash-attention's BERT.
    "xlm-roberta-flash": FLASH_ROBERTA,
    # Decoders: rotary positions, grouped keys, RMS norms, gated layers; an answer or labels are read at the
    # last token of a prompt (`models.checkpoint.prompt`). Byte-level BPE, or Gemma's BPE of whole texts.
    "qwen3": decoders("Qwen3", head_size=128, head_norms=True),
    "qwen2": decoders("Qwen2", projection_bias=True),
    "gemma": decoders("Gemma", head_size=256, is_gemma=True),
}


def family_of(raw: Mapping[str, Any]) -> str:
    """Return the family of a parsed config.json. Raises UnsupportedCheckpoint if it is none of FAMILIES.

    Configs from before `model_type` are told apart by their `architectures`; without these too, they are
    BERT's.
    """
    model_type, architectures = raw.get("model_type"), raw.get("architectures") or ["BertModel"]
    own_code = raw.get("auto_map")
    own_code = own_code if isinstance(own_code, Mapping) else {}
    family = OF_CONFIG.get(str(own_code.get("AutoConfig")).rsplit(".", 1)[-1], model_type)
    if family is None:  # XLMRobertaForSequenceClassification
        first = str(architectures[0]) if isinstance(architectures, list) else ""
        class_names = {name.replace("-", ""): name for name in FAMILIES}
        family = class_names.get(re.split("For|Model", first)[0].lower())
    is_listwise = architectures == ["JinaForRanking"]
    if not isinstance(family, str) or family not in FAMILIES or is_listwise:
        kind = " (a listwise reranker)" if is_listwise else ""
        raise UnsupportedCheckpoint(
            f"config.json: model_type is {model_type!r}, and architectures is "
            f"{raw.get('architectures')!r}{kind}; supported: {', '.join(FAMILIES)}"
        )
    is_own = FAMILIES[family].in_transformers and any(name.startswith("AutoModel") for name in own_code)
    need(not is_own, "auto_map", own_code, "the checkpoint brings code of its own, which is not run")
    return family
