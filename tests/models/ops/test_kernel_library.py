"""How the kernels' libraries are compiled, chosen and tried."""

import ctypes
import logging
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headroom.models import cores
from headroom.models.cores import cpu_flags
from headroom.models.ops import kernel_build, kernel_library
from headroom.models.ops.__main__ import main
from headroom.models.ops.kernel_build import FLAGS, LEVELS, Level, levels_of_machine
from tests.referees import need

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the kernels were tried on x86-64 alone"
)

HERE = [level for level in levels_of_machine() if cpu_flags().issuperset(level.features)]
AMX, AVX2 = (next(level for level in LEVELS if level.name == name) for name in ("amx", "avx2"))


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another directory for the libraries, empty as yet; `choice` looks again, now and after the test."""
    directory = tmp_path / "built"
    monkeypatch.setattr(kernel_build, "BUILT", directory)
    kernel_library.choice.cache_clear()
    yield directory
    for cached in (cpu_flags, kernel_library.choice):
        cached.cache_clear()


@pytest.fixture
def copies(built: Path) -> Path:
    """The libraries of this checkout in the other directory."""
    original = Path(kernel_build.__file__).with_name("built")
    shutil.copytree(original, built)
    return built


NAMES = {
    "bmi": "bmi1",
    "lzcnt": "abm",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sse4": "sse4_2",
    "crc32": "sse4_2",
    "sahf": "lahf_lm",
    "avx512bf16": "avx512_bf16",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
    "amx-tile": "amx_tile",
}
"""The compiler's options → the features of CPUINFO, unless they have the same name."""

NEVER_EMITTED = {"mwait", "vzeroupper", "evex512"}
"""A privileged instruction; how the compiler uses one of AVX; GCC 14's name for the width of AVX-512."""


def enabled(*flags: str) -> set[str]:
    command = [need("g++"), *flags, "-Q", "--help=target"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0].removeprefix("-m") for line in lines if line.endswith("[enabled]")}


@pytest.mark.parametrize(
    "level", [level for level in LEVELS if level.machine == "x86_64"], ids=lambda level: level.name
)
def test_a_level_names_every_feature_that_its_compiler_may_use(level: Level) -> None:
    allowed = enabled(*level.flags) - enabled("-march=x86-64") - NEVER_EMITTED
    assert {NAMES.get(name, name) for name in allowed} == set(level.features)


@pytest.mark.parametrize("hidden", ["bmi2", "abm"])
@pytest.mark.usefixtures("copies")
def test_a_feature_that_a_hypervisor_hides_gives_the_next_level_and_a_reason(
    hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cpuinfo = cores.CPUINFO.read_text()
    if hidden not in cpuinfo:
        pytest.skip(f"this processor has no {hidden}")
    masked = tmp_path / "cpuinfo"
    masked.write_text(cpuinfo.replace(f" {hidden} ", " "))
    monkeypatch.setattr(cores, "CPUINFO", masked)
    cpu_flags.cache_clear()
    able = [level for level in HERE if hidden not in level.features]
    with caplog.at_level(logging.WARNING):
        kernels, skipped, _ = kernel_library.choice()
    assert (kernels and kernels.name) == (able[0].name if able else None)
    assert skipped[0] == f"{HERE[0].name}: this processor does not show {hidden}"
    assert skipped[0] in caplog.text


def test_nothing_is_compiled_when_the_kernels_are_first_needed(
    built: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert kernel_library.choice().kernels is None
    assert not built.exists()
    assert len(caplog.records) == 1
    assert f"{HERE[0].name}: not compiled" in caplog.text
    assert f"(apt-get install g++), run: {sys.executable} -m headroom.models.ops" in caplog.text


@pytest.mark.usefixtures("built")
def test_without_a_compiler_the_install_says_what_to_install_and_torch_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    assert main() == 1
    told = capsys.readouterr().out
    assert "kernels for avx2: not compiled: no C++ compiler" in told
    assert "to compile them, with a C++ compiler (apt-get install g++), run: " in told
    assert "none, torch computes" in told


MISTAKES = {
    "attention": ("scale = 1.44269504f", "scale = (MADE ? 1.4f : 1.44269504f)"),
    "causal attention": ("epsilon, 1.44269504f", "epsilon, (MADE ? 1.4f : 1.44269504f)"),
    "attention of first tokens": ("first_only ? 1 : length", "first_only ? !(MADE) : length"),
    "layer normalisation": ("total(squares[r]) / width", "total(squares[r]) / (width - (MADE))"),
    "affine map": ("low += left", "low += (MADE ? -left : left)"),
    "map of 8-bit integers": ("map->bias + column));", "(MADE ? map->scale : map->bias) + column));"),
}
"""A part of the source, and the same part with a mistake that is made if MADE holds."""


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the source, which makes the mistake whose number its variable has; 0 is none."""
    directory = tmp_path_factory.mktemp("mistaken")
    sources = shutil.copytree(kernel_build.SOURCES, directory / "native")
    for number, (right, wrong) in enumerate(MISTAKES.values(), 1):
        (file,) = [file for file in sources.iterdir() if right in file.read_text()]
        text = file.read_text()
        assert text.count(right) == 1
        file.write_text(text.replace(right, wrong.replace("MADE", f"headroom_mistake == {number}")))
    main = sources / "kernels.cpp"
    main.write_text(f'extern "C" {{ int headroom_mistake = 0; }}\n{main.read_text()}')
    return directory


@pytest.mark.parametrize("what", MISTAKES)
def test_a_library_that_computes_something_else_is_not_used(
    what: str, mistaken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = AMX if what in ("affine map", "map of 8-bit integers") else AVX2
    if level not in HERE:
        pytest.skip(f"this processor does not have what the mistake is about: {level.name}")
    monkeypatch.setattr(kernel_build, "BUILT", mistaken / "built")
    monkeypatch.setattr(kernel_build, "SOURCES", mistaken / "native")
    monkeypatch.setattr(kernel_build, "FLAGS", (*kernel_build.FLAGS, "-O1"))
    library = ctypes.CDLL(str(kernel_build.build(level)))
    number = ctypes.c_int.in_dll(library, "headroom_mistake")
    kernel_library.load(level)
    number.value = [*MISTAKES].index(what) + 1
    try:
        with pytest.raises(RuntimeError, match=f"^{what}"):
            kernel_library.load(level)
    finally:
        number.value = 0


DRIVER = Path(__file__).with_name("kernels_driver.cpp")


@pytest.mark.more
@pytest.mark.skipif(sys.platform != "linux", reason="the emulator runs on Linux")
def test_attention_norms_and_quantization_are_right_on_arm(tmp_path: Path) -> None:
    level = next(level for level in LEVELS if level.machine == "aarch64")
    program = tmp_path / "driver"
    flags = [flag for flag in FLAGS if flag != "-shared"]
    compiler = [need("aarch64-linux-gnu-g++"), *flags, *level.flags, "-static"]
    subprocess.run([*compiler, "-o", program, DRIVER], check=True, capture_output=True)

    tried = subprocess.run([need("qemu-aarch64"), program], capture_output=True, text=True, check=False)

    assert (tried.returncode, tried.stdout) == (0, "the kernels agree\n"), tried.stderr
