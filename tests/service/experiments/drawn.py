"""What the steps of a history are drawn from, and what must happen in them."""

from typing import Any

from hypothesis import strategies as st

from tests.service.experiments.comparing import FILES, READERS, UNITS, WINDOW
from tests.service.experiments.replicas import NEVER

REPLICA = st.integers(0, 1)
FILE = st.sampled_from(["right", "right", "right", "again", *sorted(FILES)])
INDEX = st.integers(0, 3)
"""Of the experiments to which something can be done, or of the titles of a list."""
SECONDS = st.sampled_from([-2 * WINDOW, -5.0, -1.0, -0.5, 0.0, 0.0, 0.0, 0.25, 5.0, WINDOW, 1.5 * WINDOW])
"""How much later than now, or than its unit's exposure, an outcome or click happened, as its sender says."""
LEFT = st.sampled_from([NEVER, NEVER, NEVER, NEVER, 0, 1, 2, 4, 8])
FIRST = st.integers(0, len(UNITS) - 1)

Action = dict[str, Any]
"""What a person does, as fields of a row of the log."""

STOP: Action = {"kind": "stop"}
SHIPS: list[Action] = [{"kind": "ship", "arm": arm} for arm in ("control", "a", "b")]
RAMPS: list[Action] = [{"kind": "ramp", "traffic": traffic} for traffic in (0.0, 0.4, 1.0)]
ENDS = st.sampled_from([STOP, *SHIPS])
ACTIONS = st.sampled_from([STOP, *SHIPS, *RAMPS, {"kind": "rollback"}])
"""What a person may do."""
LISTS = st.sampled_from(
    ["q1", "q2", "q3", "{unit}-q1", "{unit}-q2", "{unit}-q3", f"{READERS[0]}-q1", "nowhere"]
)
"""What a click names: a query, the list of a query, another unit's list."""
CLICKS = st.lists(
    st.fixed_dictionaries(
        {
            "experiment": st.sampled_from(["order", "again", "", ""]),
            "unit": st.sampled_from(READERS),
            "list_id": LISTS,
            "metric": st.sampled_from(["click", "buy"]),
            "index": INDEX,
        }
    ),
    min_size=1,
    max_size=8,
)

HAPPENINGS = (
    *("config", "start", "ramp", "stop", "ship", "rollback", "delete"),  # rows of the log
    *("killed with facts", "edit on one of two", "edit refused", "wrong file", "outage", "wrong clock"),
    *("click before its list", "click with its list", "click after its list", "late outcome"),
)
"""What must happen in a good share of the histories."""
