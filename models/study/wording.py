"""Numbers and tests as the reports word them."""

from __future__ import annotations

from models.quality.bootstrap import Interval

NAMES = {"accuracy": "accuracy", "macro_f1": "macro-F1", "qwk": "QWK", "ndcg10": "NDCG@10"}
"""The metrics as people write them."""


def signed(value: float, digits: int = 3) -> str:
    """A change, with its sign: −0.031."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text.replace("+", "").replace("−", "") if float(f"{value:.{digits}f}") == 0 else text


def with_interval(found: Interval, digits: int = 3) -> str:
    """A change and its interval: −0.031 (−0.050 to −0.012)."""
    if found.low != found.low:
        return f"{signed(found.value, digits)} (no interval)"
    return f"{signed(found.value, digits)} ({signed(found.low, digits)} to {signed(found.high, digits)})"


def percent(found: Interval, digits: int = 1) -> str:
    """A relative change and its interval in per cent: −5.2 % (−8.0 to −2.4)."""
    if found.low != found.low:
        return "–" if found.value != found.value else f"{signed(found.value * 100, digits)} % (no interval)"
    # Nothing but QWK can lose more than all of itself, and of QWK no more than 100 % is worth telling.
    low = max(found.low, min(-1.0, found.value))
    scaled = Interval(found.value * 100, low * 100, found.high * 100)
    return f"{signed(scaled.value, digits)} % ({signed(scaled.low, digits)} to {signed(scaled.high, digits)})"


def p_value(p: float) -> str:
    """A p-value to two digits, never 0."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def listed(items: list[str]) -> str:
    """a, b and c."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1] if items else "none"


def layer_range(layers: range) -> str:
    """The layers of a half as the mask grammar names them: 0-5."""
    return f"{layers.start}-{layers.stop - 1}" if len(layers) > 1 else str(layers.start)
