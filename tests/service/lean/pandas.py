"""Stands in for pandas on the path of services that tests start: as if it were not installed.

Most users do not install it (`headroom[notebook]`). Serve imports it where it is, in each of its processes,
which takes a start some seconds of the processor.
"""

raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
