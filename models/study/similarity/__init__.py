"""How alike are the heads, what can each layer's output tell, and do two training seeds end with the same
heads?"""

from models.study.result import Result
from models.study.similarity import compute, report
from models.study.study import Study


def run(study: Study) -> Result:
    """Return distances and clusters, probes, and, with a peer, the comparison of training seeds."""
    return report.result(study, compute.measure(study))
