"""Whole layers off: one at a time, from below, from above, and how much the later layers change."""

from models.study.layers import compute, report
from models.study.result import Result
from models.study.study import Study


def run(study: Study) -> Result:
    """Return the effects of whole layers, and linear CKA and cosine of the outputs of later layers."""
    return report.result(study, compute.measure(study))
