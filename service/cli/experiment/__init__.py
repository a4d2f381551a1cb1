"""`headroom experiment`: plan an A/B test; report, ramp, stop and ship it while it runs."""

from __future__ import annotations

import typer

from service.cli.experiment import plan, running

app = typer.Typer(
    help="A/B tests of variants: plan one, then report, ramp, stop and ship it while it runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("plan")(plan.command)
app.command("report")(running.report)
app.command("ramp")(running.ramp)
app.command("stop")(running.stop)
app.command("ship")(running.ship)
