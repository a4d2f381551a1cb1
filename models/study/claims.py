"""The verdicts on the published claims: found, not found, built in, not testable here, or open.

Claims about the same fact count once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from models.checkpoint.hub import DEFAULT, locate
from models.study.result import Finding
from models.study.study import Study
from models.study.wording import listed

FOUND, NOT_FOUND, BUILT_IN, NOT_TESTABLE, OPEN = (
    "found",
    "not found",
    "built in",
    "not testable here",
    "open",
)
VERDICTS = (FOUND, NOT_FOUND, BUILT_IN, NOT_TESTABLE, OPEN)

FIFTH = "about 20 % of the heads can go at no loss"
DEPTH = "the lower layers do the work"
MATCHING = "heads match terms"
MATCHING_LOST = "the model needs its term-match heads"
SHARED = "heads share patterns"

_GROWN = (
    "the model was trained with four layers and grown to twelve by copying them, the added layers' outputs "
    "scaled by 0.15"
)
_MATCHES = "training began with heads that match terms (_start_by_matching)"
SHIPPED = {
    DEPTH: (BUILT_IN, f"Built in: {_GROWN}."),
    MATCHING: (BUILT_IN, f"Built in: {_MATCHES}."),
    MATCHING_LOST: (
        NOT_TESTABLE,
        f"Not testable here: {_MATCHES}, and they stand in layers 0 to 2, not in those of the published "
        f"heads.",
    ),
    SHARED: (BUILT_IN, f"Built in: {_GROWN}."),
}
"""By fact, the verdict that follows from how the shipped model was made, and why. For other models only the
numbers decide."""


def scored(findings: Sequence[Finding], study: Study) -> tuple[Finding, ...]:
    """Return the findings with their verdicts; for the shipped model, how it was made counts too."""
    known = SHIPPED if _is_shipped(study.model) else {}
    return tuple(_scored(finding, known.get(finding.fact)) for finding in findings)


def conclusion(findings: Sequence[Finding]) -> str:
    """Say how many facts the claims are about, and which fact has which verdict. findings: scored."""
    facts: dict[str, list[Finding]] = {}
    for finding in findings:
        facts.setdefault(finding.fact or finding.claim, []).append(finding)
    text = [f"The {len(findings)} published claims come to {len(facts)} facts."]
    for verdict in VERDICTS:
        names = [
            fact + (f" ({len(claims)} claims)" if len(claims) > 1 else "")
            for fact, claims in facts.items()
            if _verdict(claims) == verdict
        ]
        if names:
            text.append(f"{verdict[0].upper()}{verdict[1:]}: {len(names)} ({listed(names)}).")
    return " ".join(text)


def _verdict(claims: Sequence[Finding]) -> str:
    """Return the verdict on a fact: that of its claims if they agree, else open."""
    verdicts = {claim.verdict for claim in claims}
    return verdicts.pop() if len(verdicts) == 1 else OPEN


def _scored(finding: Finding, known: tuple[str, str] | None) -> Finding:
    if known is not None and (finding.replicates or known[0] == NOT_TESTABLE):
        return replace(finding, verdict=known[0], reason=f"{finding.reason} {known[1]}")
    plain = {True: FOUND, False: NOT_FOUND, None: OPEN}[finding.replicates]
    return replace(finding, verdict=plain)


def _is_shipped(model: str | None) -> bool:
    return model is None or locate(Path(model)) == DEFAULT
