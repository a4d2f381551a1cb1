"""The report of `cost`: the table, its plots, and cost.json for `headroom study search --cost`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from models.study.latency import LatencyTable
from models.study.plots import BLUE, GREEN, LINES, ORANGE, figure
from models.study.result import Figure, Result, Section, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def result(table: LatencyTable) -> Result:
    """Return the report of a latency table."""
    content = table.to_json()
    return Result(
        "cost",
        {"cost": content},
        conclusion(table),
        (_section(table),),
        files={"cost.json": json.dumps({"cost": content}, indent=1) + "\n"},
    )


def conclusion(table: LatencyTable) -> str:
    """Say what a layer costs, which half costs more, and how much of a cut is saved as time."""
    heads, units, tokens = table.heads[-1], table.units[-1], table.tokens[-1]
    whole = table.layer(heads, units, tokens)
    half = table.layer(round(heads / 2), round(units / 2), tokens)
    return (
        f"A whole layer ({heads} heads, {units} units) takes {whole * 1e3:.2f} ms for {tokens:,} tokens on "
        f"one thread; its feed-forward half is {table.feed_forward_half(units, tokens) / whole:.0%} of that. "
        f"With half of its heads and units it takes {half / whole:.0%}. Embeddings and "
        f"classifier take {table.other[-1] * 1e3:.2f} ms. Whole layers that were measured beside the table "
        f"differ from it by at most {table.largest_error:.0%}."
    )


def _section(table: LatencyTable) -> Section:
    about = table.about
    machine = ", ".join(part for part in (about["processor"], about["device"]) if part)
    rows = [
        (f"{tokens:,}", str(heads), str(units), f"{table.layer(heads, units, tokens) * 1e3:.3f}")
        for tokens in table.tokens
        for heads, units in zip(_thirds(table.heads), _thirds(table.units), strict=True)
    ]
    return Section(
        "Cost: a layer's time",
        (
            f"Times are of one thread, in {about['number_format']}, on {machine} (torch {about['torch']}), "
            f"the shortest of {about['rounds']} rounds in which all parts took turns. Sequences have "
            f"{table.sequence_tokens} tokens. A layer's halves run one after the other, so the table holds "
            "them apart and a layer takes their sum. The network's last layer continues with first tokens "
            "only, which the table holds too.",
        ),
        (Table(("tokens", "heads", "units", "ms"), tuple(rows), "Examples; cost.json holds all times."),),
        (
            Figure(
                "cost_halves",
                "Microseconds per token of each half of a layer, by heads and by units kept.",
                lambda: halves(table),
                alt="Two panels of lines, one line per number of tokens: time by heads and by units.",
            ),
            Figure(
                "cost_saved",
                "The share of a layer's time that is left, by the share of its heads and units that is "
                "kept; on the dotted line all removed arithmetic is saved as time.",
                lambda: saved(table),
                alt="Lines that fall from 1, beside a dotted diagonal.",
            ),
        ),
    )


def halves(table: LatencyTable) -> Drawing:
    """Draw the time of each half per token."""
    drawing, panels = figure(12, 4.8, columns=2)
    for number, tokens in enumerate(table.tokens):
        colour, dash, marker = LINES[number % len(LINES)]
        style = {"color": colour, "linestyle": dash, "marker": marker, "label": f"{tokens:,} tokens"}
        for axes, counts, half in (
            (panels[0], table.heads, table.attention_half),
            (panels[1], table.units, table.feed_forward_half),
        ):
            axes.plot(counts, [half(count, tokens) / tokens * 1e6 for count in counts], **style)
    panels[0].set(title="attention", xlabel="heads kept", ylabel="µs per token", ylim=(0, None))
    panels[1].set(title="feed-forward", xlabel="units kept", ylabel="µs per token", ylim=(0, None))
    panels[1].legend(fontsize=9)
    return drawing


def saved(table: LatencyTable) -> Drawing:
    """Draw the share of time left by the share kept, in the largest batch."""
    drawing, axes = figure(6.5, 5)
    tokens, heads, units = table.tokens[-1], table.heads[-1], table.units[-1]
    for counts, half, colour, marker, label in (
        (table.heads, table.attention_half, BLUE, "o", "attention, by heads"),
        (table.units, table.feed_forward_half, ORANGE, "s", "feed-forward, by units"),
    ):
        whole = half(counts[-1], tokens)
        shares = [count / counts[-1] for count in counts]
        axes.plot(
            shares,
            [half(count, tokens) / whole for count in counts],
            color=colour,
            marker=marker,
            label=label,
        )
    steps = [step / 12 for step in range(1, 13)]
    whole = table.layer(heads, units, tokens)
    left = [table.layer(round(heads * step), round(units * step), tokens) / whole for step in steps]
    axes.plot(steps, left, color=GREEN, marker="^", linestyle="--", label="a layer, both")
    axes.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle=":")
    axes.set(
        xlabel="share kept", ylabel=f"share of time left, {tokens:,} tokens", xlim=(0, 1), ylim=(0, None)
    )
    axes.legend(fontsize=9)
    return drawing


def _thirds(counts: tuple[int, ...]) -> tuple[int, ...]:
    return (counts[-1], counts[2 * len(counts) // 3], counts[len(counts) // 3])
