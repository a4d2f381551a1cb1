"""Small random checkpoints of families that bring code of their own, and what they compute, written plainly.

The layouts are those of the published checkpoints, the formulas those of the papers that
`headroom.models.checkpoint.families` names.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from headroom.models.checkpoint.tokenizer import EncodedPair
from tests import families
from tests.checkpoints import GRADES, SHAPE

FAMILIES = ("new", "jina-bert", "xlm-roberta-flash")
_LABELS = {"id2label": {str(i): name for i, name in enumerate(GRADES)}}
CONFIGS: dict[str, dict[str, Any]] = {
    "new": {
        "model_type": "new",
        "auto_map": {
            "AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig",
            "AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel",
        },
        "position_embedding_type": "rope",
        "rope_theta": 20_000,
        "rope_scaling": {"type": "ntk", "factor": 8.0},
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-12,
    },
    "jina-bert": {
        "model_type": "bert",
        "auto_map": {
            "AutoConfig": "configuration_bert.JinaBertConfig",
            "AutoModelForSequenceClassification": "modeling_bert.JinaBertForSequenceClassification",
        },
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    },
    "xlm-roberta-flash": {
        "architectures": ["XLMRobertaForSequenceClassification"],
        "auto_map": {
            "AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig",
            "AutoModelForSequenceClassification": "modeling_xlm_roberta.XLMRobertaForSequenceClassification",
        },
        "position_embedding_type": "absolute",
        "type_vocab_size": 1,
        "pad_token_id": 1,
        "layer_norm_eps": 1e-5,
    },
}
PARTS = "encoder layer out attention_norm up down norm pooler classifier".split()
NAMES = {
    family: dict(zip(PARTS, names.split(), strict=True))
    for family, names in {
        "new": """new. encoder.layer. attention.o_proj attn_ln mlp.up_gate_proj mlp.down_proj mlp_ln
            new.pooler.dense classifier""",
        "jina-bert": """bert. encoder.layer. attention.output.dense attention.output.LayerNorm
            mlp.gated_layers mlp.wo mlp.layernorm bert.pooler.dense classifier""",
        "xlm-roberta-flash": """roberta. encoder.layers. mixer.out_proj norm1 mlp.fc1 mlp.fc2 norm2
            classifier.dense classifier.out_proj""",
    }.items()
}
"""What each family calls the parts of its network."""
PROJECTIONS = {
    "new": ["attention.qkv_proj"],
    "jina-bert": [f"attention.self.{name}" for name in ("query", "key", "value")],
    "xlm-roberta-flash": ["mixer.Wqkv"],
}


def config_of(family: str, **shape: Any) -> dict[str, Any]:
    """Return a config.json. shape: changes of `SHAPE`; max_position_embeddings is the window."""
    config = {"vocab_size": 400, "hidden_act": "gelu", **_LABELS, **SHAPE, **CONFIGS[family], **shape}
    if family == "xlm-roberta-flash":
        config["max_position_embeddings"] += config["pad_token_id"] + 1
    return config


def tensors_of(family: str, config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Return random tensors under the names of the published checkpoints."""
    generator, names = torch.Generator().manual_seed(seed), NAMES[family]
    hidden, inner, encoder = config["hidden_size"], config["intermediate_size"], names["encoder"]
    tensors: dict[str, Tensor] = {}

    def matrix(name: str, rows: int, columns: int, *, bias: bool = True) -> None:
        tensors[f"{name}.weight"] = torch.randn(rows, columns, generator=generator) / columns**0.5
        if bias:
            tensors[f"{name}.bias"] = torch.randn(rows, generator=generator) * 0.1

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = torch.rand(hidden, generator=generator) + 0.5
        tensors[f"{name}.bias"] = torch.randn(hidden, generator=generator) * 0.1

    tables = {"word_embeddings": config["vocab_size"], "token_type_embeddings": config["type_vocab_size"]}
    if family == "xlm-roberta-flash":
        tables["position_embeddings"] = config["max_position_embeddings"]
    for name, rows in tables.items():
        if rows:
            matrix(f"{encoder}embeddings.{name}", rows, hidden, bias=False)
    norm(f"{encoder}{'emb_ln' if family == 'xlm-roberta-flash' else 'embeddings.LayerNorm'}")
    for number in range(config["num_hidden_layers"]):
        layer = f"{encoder}{names['layer']}{number}."
        for name in PROJECTIONS[family]:
            matrix(f"{layer}{name}", 3 * hidden // len(PROJECTIONS[family]), hidden)
        matrix(f"{layer}{names['out']}", hidden, hidden)
        norm(f"{layer}{names['attention_norm']}")
        gated = family != "xlm-roberta-flash"
        matrix(f"{layer}{names['up']}", (1 + gated) * inner, hidden, bias=not gated)
        matrix(f"{layer}{names['down']}", hidden, inner)
        norm(f"{layer}{names['norm']}")
    matrix(names["pooler"], hidden, hidden)
    matrix(names["classifier"], len(config["id2label"]), hidden)
    return tensors


def write_own_code(directory: Path, family: str, seed: int = 0, **shape: Any) -> Path:
    """Write a checkpoint of such a family, with the tokenizer of its kind."""
    directory.mkdir(parents=True, exist_ok=True)
    config = config_of(family, **shape)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors_of(family, config, seed), directory / "model.safetensors", {"format": "pt"})
    families.write_tokenizer(directory, "roberta" if family == "jina-bert" else "xlm-roberta")
    return directory


def logits_of(
    family: str, config: dict[str, Any], tensors: dict[str, Tensor], pair: EncodedPair, weights: np.ndarray
) -> np.ndarray:
    """Return a pair's logits in float64. weights: of the heads, (layers, heads)."""
    names, heads = NAMES[family], config["num_attention_heads"]
    encoder, eps = names["encoder"], config["layer_norm_eps"]
    exact = {name: tensor.double() for name, tensor in tensors.items()}

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, exact[f"{name}.weight"], exact.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], exact[f"{name}.weight"], exact[f"{name}.bias"], eps)

    count, position = len(pair), torch.arange(len(pair))
    x = exact[f"{encoder}embeddings.word_embeddings.weight"][torch.tensor(pair.ids.tolist())]
    types = exact.get(f"{encoder}embeddings.token_type_embeddings.weight")
    if types is not None:
        x = x + types[(position >= pair.first_segment).long() if len(types) > 1 else 0]
    if family == "xlm-roberta-flash":
        x = (
            x
            + exact[f"{encoder}embeddings.position_embeddings.weight"][position + config["pad_token_id"] + 1]
        )
    x = norm(x, f"{encoder}{'emb_ln' if family == 'xlm-roberta-flash' else 'embeddings.LayerNorm'}")
    bias = torch.zeros(1)
    if family == "jina-bert":
        bias = -slopes(heads)[:, None, None] * (position[:, None] - position).abs()
    for number in range(config["num_hidden_layers"]):
        layer = f"{encoder}{names['layer']}{number}."
        projected = torch.cat([linear(x, f"{layer}{name}") for name in PROJECTIONS[family]], -1)
        query, key, value = projected.view(count, 3, heads, -1).permute(1, 2, 0, 3)
        if family == "new":
            query, key = turned(query, config), turned(key, config)
        scores = query @ key.mT / math.sqrt(query.shape[-1]) + bias
        context = scores.softmax(-1) @ value * torch.from_numpy(weights[number]).double()[:, None, None]
        x = norm(
            x + linear(context.transpose(0, 1).flatten(1), f"{layer}{names['out']}"),
            f"{layer}{names['attention_norm']}",
        )
        inner = linear(x, f"{layer}{names['up']}")
        activate = F.relu if config.get("feed_forward_type") == "reglu" else F.gelu
        if family == "xlm-roberta-flash":
            inner = activate(inner)
        else:
            first, second = inner.chunk(2, -1)
            inner = activate(second) * first if family == "new" else activate(first) * second
        x = norm(x + linear(inner, f"{layer}{names['down']}"), f"{layer}{names['norm']}")
    found: np.ndarray = linear(linear(x[0], names["pooler"]).tanh(), names["classifier"]).numpy()
    return found


def slopes(heads: int) -> Tensor:
    """The slopes of Press et al. 2022: 2^(−8/n), 2^(−16/n) …; for other numbers also those between."""
    whole = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-8 * i / whole) for i in range(1, whole + 1)]
    between = [2 ** (-8 * i / (2 * whole)) for i in range(1, 2 * whole + 1, 2)]
    return torch.tensor([*first, *between][:heads], dtype=torch.float64)


def turned(x: Tensor, config: dict[str, Any]) -> Tensor:
    """Rotate (h, n, d) as RoPE does, two numbers half a head apart together, with NTK scaling."""
    half, scaling = x.shape[-1] // 2, config.get("rope_scaling") or {"factor": 1.0}
    factor, place = scaling["factor"], torch.arange(half, dtype=torch.float64)
    angle = (config["rope_theta"] * factor) ** (-place / half) / factor ** (1 / half)
    turn = torch.polar(torch.ones(()).double(), torch.arange(x.shape[1]).double()[:, None] * angle)
    whole = torch.complex(x[..., :half], x[..., half:]) * turn
    return torch.cat([whole.real, whole.imag], -1)
