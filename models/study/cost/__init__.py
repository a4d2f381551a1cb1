"""The time that a layer takes on this machine, by heads kept, units kept and tokens in the batch."""

from models.study.cost import compute, report
from models.study.result import Result
from models.study.study import Study


def run(study: Study) -> Result:
    """Return the latency table of the model's layers, with plots and as `cost.json`."""
    return report.result(compute.measured(study))
