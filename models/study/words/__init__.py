"""Which layers know which words of a query matter: queries condensed with a layer off."""

from models.study.result import Result
from models.study.study import Study
from models.study.words import compute, report


def run(study: Study) -> Result:
    """Return what each layer's absence does to the choice of words, and to the ranking by them."""
    return report.result(compute.measure(study))
