"""The study `roles`: what heads attend to (word order, word parts, equal terms), and whether it matters."""

from models.study.result import Result
from models.study.roles import compute, report
from models.study.study import Study


def run(study: Study) -> Result:
    """Return each head's score in every role, and the effect of switching off the leading heads of a role."""
    return report.result(study, compute.measure(study))
