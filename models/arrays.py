"""The types of numpy's arrays, and the lowest number of one."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LOWEST = float(np.finfo(np.float32).min)
"""The lowest finite float32, and so the lowest score that an answer holds."""
