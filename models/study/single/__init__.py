"""Each head off alone: what is lost, and is it more than chance? (Michel et al. 2019, arXiv:1905.10650,
§3.)"""

from models.study.result import Result
from models.study.single import compute, report
from models.study.study import Study


def run(study: Study) -> Result:
    """Return the effect of each head on every metric, with intervals, adjusted p-values and heat maps."""
    return report.result(study, compute.measure(study))
