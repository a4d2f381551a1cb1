"""The kernels for ARM, which an emulator runs: the vectors of the compiler are right there, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from models.ops.kernel_build import FLAGS, LEVELS
from tests.referees import need

DRIVER = Path(__file__).with_name("kernels_driver.cpp")


@pytest.mark.skipif(sys.platform != "linux", reason="the emulator runs on Linux")
def test_attention_norms_and_quantization_are_right_on_arm(tmp_path: Path) -> None:
    level = next(level for level in LEVELS if level.machine == "aarch64")
    program = tmp_path / "driver"
    flags = [flag for flag in FLAGS if flag != "-shared"]
    compiler = [need("aarch64-linux-gnu-g++"), *flags, *level.flags, "-static"]
    subprocess.run([*compiler, "-o", program, DRIVER], check=True, capture_output=True)

    tried = subprocess.run([need("qemu-aarch64"), program], capture_output=True, text=True, check=False)

    assert (tried.returncode, tried.stdout) == (0, "the kernels agree\n"), tried.stderr
