"""headroom.service.ray.patches: what Ray does with our patches, which another release may change."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.running import Server

ROOT = Path(__file__).parents[3]
PATCHES = ROOT / "service" / "ray" / "patches.py"


@pytest.mark.parametrize(
    "call",
    [
        "leave_out_idle_programs()",
        "replace_haproxy_manager(type('Manager', (), {}))",
        "start_no_fallback_proxy()",
        "use_haproxy_template('', None)",
        "haproxy_manager().check_health",
    ],
)
def test_this_release_has_what_is_patched(call: str) -> None:
    """In a process of its own, which the patches do not outlive."""
    code = f"from headroom.service.ray import patches; patches.{call}"
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_gone_is_named() -> None:
    code = "from headroom.service.ray import patches; patches._replace(patches, 'gone', None)"
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert "has no attribute 'gone'" in done.stderr


def test_a_traceback_in_a_replicas_log_is_as_python_writes_it() -> None:
    """`logging` prints it, and Serve's `print` writes each line as a tuple."""
    code = """
import builtins, logging, sys
from ray.serve._private import logging_utils
from headroom.service.ray import patches

def formatted():
    try:
        raise OSError("the disk is full")
    except OSError:
        return logging.Formatter().formatException(sys.exc_info())

builtins.print = logging_utils.redirected_print
assert "('Traceback" in formatted(), "this release is mended: the patch can go"
patches.restore_print()
sys.stdout.write(formatted())
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "OSError: the disk is full")


def test_each_patch_says_what_it_is_for_and_no_other_file_uses_private_names() -> None:
    """What a maintainer needs at Ray's next release."""
    for entry in ast.parse(PATCHES.read_text()).body:
        if isinstance(entry, ast.FunctionDef | ast.ClassDef) and entry.name not in (
            "_replace",
            "haproxy_manager",
        ):
            doc = inspect.cleandoc(ast.get_docstring(entry) or "")
            assert all(part in doc for part in ("Without it: ", "Shown by: ", "Next release: ")), entry.name
    for file in (ROOT / "service").rglob("*.py"):
        if file != PATCHES:
            modules = [
                name.name if isinstance(node, ast.Import) else node.module or ""
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.Import | ast.ImportFrom)
                for name in node.names
            ]
            private = [name for name in modules if name.startswith("ray.") and "._" in name]
            assert not private, file


def test_ray_starts_no_program_that_nobody_uses(server: Server) -> None:
    """Each is a Python process of 45 to 75 MB."""
    started = [" ".join(process.cmdline()) for process in server.family()]
    assert any("raylet" in command for command in started)
    for program in ("monitor.py", "log_monitor.py", "dashboard.py"):
        assert not [command for command in started if f"/{program}" in command]
