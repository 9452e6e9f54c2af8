"""ECharts is used only with the right checksum, and every failure says what to do."""
import contextlib
import hashlib
import io
import os
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
import echarts

SCRIPT = b"var echarts;"


class SetUp(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        (self.folder / "crates/report").mkdir(parents=True)
        self.build = self.folder / "crates/report/build.rs"
        self.build.write_text("")
        os.utime(self.build, (1, 1))
        for patch in (
            mock.patch.object(echarts, "REPOSITORY", self.folder),
            mock.patch.object(echarts, "SHA256", hashlib.sha256(SCRIPT).hexdigest()),
            mock.patch.object(echarts, "npm", lambda folder: ["npm"]),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            patch.__enter__()
            self.addCleanup(patch.__exit__, None, None, None)

    def package(self, script):
        """Stands in for `npm pack`."""

        def run(command):
            folder = Path(command[command.index("--pack-destination") + 1])
            with tarfile.open(folder / f"echarts-{echarts.VERSION}.tgz", "w:gz") as package:
                for name, content in {"dist/echarts.min.js": script, "LICENSE": b"Apache", "NOTICE": b"notice"}.items():
                    entry = tarfile.TarInfo(f"package/{name}")
                    entry.size = len(content)
                    package.addfile(entry, io.BytesIO(content))

        return mock.patch.object(echarts, "run", run)

    def test_the_file_is_put_where_the_build_finds_it(self):
        with self.package(SCRIPT):
            echarts.main()
        self.assertEqual((self.folder / "echarts/echarts.min.js").read_bytes(), SCRIPT)
        self.assertEqual((self.folder / "echarts/LICENSE").read_bytes(), b"Apache")
        self.assertGreater(self.build.stat().st_mtime, 1)

    def test_a_file_that_is_there_is_kept(self):
        with self.package(SCRIPT):
            echarts.main()
        os.utime(self.build, (1, 1))
        with mock.patch.object(echarts, "run", side_effect=AssertionError):
            echarts.main()
        self.assertEqual(self.build.stat().st_mtime, 1)

    def test_another_checksum_is_refused(self):
        with self.package(b"something else"), self.assertRaisesRegex(echarts.SetupError, "checksum"):
            echarts.main()
        self.assertFalse((self.folder / "echarts/echarts.min.js").exists())

    def test_a_failed_download_says_why(self):
        command = [sys.executable, "-c", "import sys; sys.exit('no route to host')"]
        with self.assertRaisesRegex(echarts.SetupError, "no route to host.*run the same command again"):
            echarts.run(command)


if __name__ == "__main__":
    unittest.main()
