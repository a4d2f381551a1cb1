"""Which heads, feed-forward units and layers can go? The best network for each speed, by measured times."""

from models.study.result import Result
from models.study.search.structured import compute, report
from models.study.study import Study


def run(study: Study) -> Result:
    """Return the path of networks, the tests on `holdout`, and the files of the chosen one.

    Raises ModelError if `data` and `holdout` share a query, or if no network is as fast as wanted.
    """
    return report.result(study, compute.search(study))
