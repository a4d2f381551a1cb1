"""Which heads can go? The best mask for each number of heads kept, and the smallest that holds up on other
queries. With units, layers or a speed: the best network for each time, by what the parts cost here."""

from models.study.result import Result
from models.study.search import compute, report
from models.study.study import Study


def run(study: Study) -> Result:
    """Return the path of masks, the tests on `holdout`, and the files of the chosen masks.

    Raises ModelError if `data` and `holdout` share a query.
    """
    if study.by_time:
        from models.study.search import structured

        return structured.run(study)
    return report.result(study, compute.measure(study))
