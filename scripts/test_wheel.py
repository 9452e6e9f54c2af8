"""What a wheel may need, and the tag that says so."""
import unittest
from pathlib import Path

import wheel
from dist import DistError


class Wheel(unittest.TestCase):
    def test_the_tag_is_that_of_the_oldest_system_with_both_libraries(self):
        for glibc, libstdcxx, expected in [
            ("2.17", "3.4.19", "2_28"),
            ("2.34", "3.4.29", "2_34"),
            ("2.34", "3.4.30", "2_35"),
            ("2.36", "3.4.21", "2_38"),
            ("2.9", "3.4.9", "2_28"),
        ]:
            with self.subTest(glibc=glibc, libstdcxx=libstdcxx):
                self.assertEqual(wheel.platform_tag(glibc, libstdcxx, "aarch64"), f"manylinux_{expected}_aarch64")
        with self.assertRaisesRegex(DistError, "2.99"):
            wheel.platform_tag("2.99", "3.4.29", "x86_64")

    def test_a_module_needs_what_torch_and_every_system_have(self):
        def reading(needed, places):
            return lambda path: (needed, places)

        wheel.check_library(Path("m.so"), wheel.THEIRS, reading(["libtorch_cpu.so", "libc.so.6"], []))
        with self.assertRaisesRegex(DistError, "needs libpython3.11.so.1.0"):
            wheel.check_library(Path("m.so"), wheel.THEIRS, reading(["libpython3.11.so.1.0", "libc10.so"], []))
        with self.assertRaisesRegex(DistError, "looks for libraries in /here"):
            wheel.check_library(Path("m.so"), wheel.THEIRS, reading(["libc10.so"], ["/here"]))


if __name__ == "__main__":
    unittest.main()
