"""Heads off at random, more and more of them: how fast does quality fall, and does it matter in which
half?"""

from models.study.random import compute, report
from models.study.result import Result
from models.study.study import Study


def run(study: Study) -> Result:
    """Return curves over all layers, the lower half and the upper half, and the tests at 20 %."""
    return report.result(study, compute.measure(study))
