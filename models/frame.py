"""Makes tables of pandas, if it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headroom.models.errors import how_to_install

if TYPE_CHECKING:
    import pandas as pd


def frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return a DataFrame of columns of equal length. Raises ModuleNotFoundError, which says how to install
    pandas."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"to_frame() needs pandas: {how_to_install('notebook')}") from None
    return pd.DataFrame(dict(columns))
