"""benches/convolutions.py launches the kernels by itself: it has to describe their arguments as they are."""

import ctypes
import importlib.util
import re
import sys
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent


def benchmark():
    """The benchmark as a module, without the PyTorch that it measures with."""
    absent = {name: mock.MagicMock() for name in ("torch", "torch.nn", "torch.nn.functional", "torch.nn.grad")}
    spec = importlib.util.spec_from_file_location("convolutions", ROOT / "benches/convolutions.py")
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, absent):
        spec.loader.exec_module(module)
    return module


def members(header, struct):
    """The fields of a C++ struct, in order."""
    text = (ROOT / "crates/cuda/cpp" / header).read_text()
    body = re.search(rf"^struct {struct} {{\n(.*?)^}};", text, re.S | re.M).group(1)
    found = []
    for line in body.strip().splitlines():
        kind, names = re.fullmatch(r"\s*(?:const )?(void|float|long long|int|CUtensorMap|Div)\b([^;]*);", line).groups()
        for name in names.split(","):
            found.append(("pointer" if "*" in name else kind, name.strip(" *")))
    return found


class Arguments(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bench = benchmark()
        kinds = {ctypes.c_void_p: "pointer", ctypes.c_longlong: "long long", ctypes.c_int: "int"}
        cls.kinds = kinds | {cls.bench.Div: "Div", cls.bench.Map: "CUtensorMap"}

    def described(self, structure):
        return [(self.kinds[kind], name) for name, kind in structure._fields_ if name != "end"]

    def test_of_the_convolutions_for_any_shape(self):
        self.assertEqual(self.described(self.bench.Conv), members("shapes.h", "Conv"))

    def test_of_the_convolutions_by_patches(self):
        self.assertEqual(self.described(self.bench.Patch), members("patch.h", "Patch"))
        # Aligned like the maps: a kernel's argument has this many bytes.
        size = ctypes.sizeof(self.bench.Patch)
        self.assertEqual(size % 64, 0)
        self.assertLess(size - self.bench.Patch.end.offset, 64)


if __name__ == "__main__":
    unittest.main()
