"""Tensors that the compiled kernels would misread are errors, not other memory."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from headroom.models.ops import kernel_library
from headroom.models.ops.causal import Causal
from headroom.models.ops.kernels import Kernels
from headroom.models.ops.positions import Positions, rotations


@pytest.fixture
def ours() -> Kernels:
    found = kernel_library.choice().kernels
    if found is None:
        pytest.skip("no compiled kernels on this machine")
    return found


def attend(ours: Kernels, **changes: Any) -> None:
    arguments = {
        "projected": torch.zeros(9, 96),
        "offsets": torch.tensor([0, 4, 9]).int(),
        "heads": 2,
        "head_weights": torch.ones(2, 2),
        "positions": Positions(rotations(100.0, 5, 16, torch.device("cpu"))),
    }
    ours.attention(**(arguments | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": torch.tensor([0, 4, 9])}, r"\(3,\) torch.int64"),
        ({"offsets": torch.tensor([0, 4, 10]).int()}, "at most 9 tokens"),
        (
            {"positions": Positions(rotations(100.0, 5, 32, torch.device("cpu"))[:, ::2])},
            r"\(5, 16\) torch.float32 \(not contiguous\)",
        ),
    ],
)
def test_attention_takes_no_other_form(ours: Kernels, changes: dict[str, Any], message: str) -> None:
    attend(ours)
    attend(ours, head_weights=torch.ones(1, 2))
    attend(ours, offsets=torch.tensor([0, 4, 9, 9]).int())  # empty sequences need no weights
    with pytest.raises(ValueError, match=message):
        attend(ours, **changes)


def test_a_prefix_is_a_sequence_without_one(ours: Kernels) -> None:
    angles = rotations(100.0, 9, 16, torch.device("cpu"))
    how = Causal((0, 2), angles, 1e-6)
    for prefixes, rotation in (([-1, 2], angles), ([1, 0], angles), ([-1, 0], angles[:8])):
        with pytest.raises(ValueError, match="a prefix must be a sequence without one"):
            ours.causal(
                torch.zeros(9, 64),
                torch.tensor([0, 4, 9]).int(),
                replace(how, rotation=rotation),
                prefixes=torch.tensor(prefixes).int(),
            )
