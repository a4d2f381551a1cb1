"""A matplotlib figure that a notebook shows by itself, also if nobody imported pyplot."""

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure of its own, without pyplot's global state."""

    def _repr_png_(self) -> bytes:
        """Return what a notebook shows."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=self.dpi)
        return buffer.getvalue()
