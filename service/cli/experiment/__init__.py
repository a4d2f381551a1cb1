"""`headroom experiment`: plan and simulate before an A/B test; report, ramp, stop and ship while it runs."""

from __future__ import annotations

import typer

from service.cli.experiment import plan, running, simulate

app = typer.Typer(
    help="A/B tests of variants: plan and simulate, then report, ramp, stop and ship a running one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("plan")(plan.command)
app.command("simulate")(simulate.command)
app.command("report")(running.report)
app.command("ramp")(running.ramp)
app.command("stop")(running.stop)
app.command("ship")(running.ship)
