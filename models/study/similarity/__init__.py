"""How alike are the heads, and what can each layer's output tell?"""

from models.study.result import Result
from models.study.similarity import compute, report
from models.study.study import Study


def run(study: Study) -> Result:
    """Return distances, clusters and probes."""
    return report.result(compute.measure(study))
