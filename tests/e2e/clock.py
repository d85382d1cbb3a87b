"""A realtime clock that a test sets while programs run on it (clock_shim.c, preloaded)."""

import mmap
import pathlib
import shutil
import struct
import subprocess

import pytest

SHIM = pathlib.Path(__file__).with_name("clock_shim.c")


def build_shim(folder):
    """The path of the library; skips the test when there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no compiler")
    library = folder / "clock_shim.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, SHIM, "-ldl"], check=True)
    return library


class Clock:
    def __init__(self, path):
        self.path = path
        path.write_bytes(bytes(8))
        with open(path, "r+b") as file:
            self.page = mmap.mmap(file.fileno(), 8)

    def environment(self, shim):
        """The environment of a program that runs on this clock."""
        return {"LD_PRELOAD": str(shim), "KVB_CLOCK_FILE": str(self.path.resolve())}

    def jump(self, seconds):
        self.page[:8] = struct.pack("<q", seconds * 1000)
