"""benches/convolutions.py launches the kernels by itself: it has to describe their arguments as they are."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCH = (ROOT / "benches/convolutions.py").read_text()


def members(header, struct):
    """The names of a C++ struct's members, in order, by kind."""
    text = (ROOT / "crates/graph/cpp" / header).read_text()
    body = re.search(rf"^struct {struct} {{\n(.*?)^}};", text, re.S | re.M).group(1)
    found = {"pointer": [], "int": [], "map": []}
    for kind, names in re.findall(r"^  (const void|void|float|long long|int|CUtensorMap|Div)\b ?([^;]*);", body, re.M):
        kinds = {"int": "int", "CUtensorMap": "map"}
        key = kinds.get(kind, "pointer" if "*" in names else None)
        if key:
            found[key] += re.findall(r"\w+", names)
    return found


def quoted(pattern):
    return re.findall(r"\w+", re.search(pattern, BENCH).group(1))


class Arguments(unittest.TestCase):
    def test_of_the_convolutions_for_any_shape(self):
        found = members("shapes.h", "Conv")
        self.assertEqual(found["pointer"], quoted(r'pointers = \[\(name, ctypes.c_void_p\) for name in \(("[^)]*")\)\] \+'))
        self.assertEqual(found["int"], quoted(r'Conv = structure\("([^"]*)"\)'))

    def test_of_the_convolutions_by_patches(self):
        found = members("patch.h", "Patch")
        self.assertEqual(found["map"], quoted(r'maps, numbers = \[\(name, Map\) for name in \(([^)]*)\)'))
        self.assertEqual(found["pointer"], quoted(r'pointers = \[\(name, ctypes.c_void_p\) for name in \(("partial"[^)]*)\)'))
        self.assertEqual(found["int"], quoted(r'maps, numbers = .*\], "([^"]*)"'))


if __name__ == "__main__":
    unittest.main()
