"""The search for parts that can go: the best network for each number of heads kept, or for each speed by
measured times, and the smallest that holds up on other queries."""

from models.study.result import Result
from models.study.search import compute, report
from models.study.study import Study


def run(study: Study) -> Result:
    """Return the path of networks, the tests on `holdout`, and the file of the chosen mask.

    Raises ModelError if `data` and `holdout` share a query, or if no network is as fast as wanted.
    """
    return report.result(compute.search(study), study)
