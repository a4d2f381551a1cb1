"""Compiles the kernels for this machine, as `make install` does, and prints the level that works here."""

from __future__ import annotations

import logging

from models.ops.kernel_library import best

if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    print(f"kernels: {kernels.name if (kernels := best()) else 'none, torch computes'}")
