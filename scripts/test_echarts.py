"""ECharts is used only with the right checksum, and comes without anything being executed."""
import contextlib
import hashlib
import io
import os
import sys
import tempfile
import unittest
import zipfile
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
            contextlib.redirect_stderr(io.StringIO()),
        ):
            patch.__enter__()
            self.addCleanup(patch.__exit__, None, None, None)

    def wheel(self, script):
        """Stands in for the download of a wheel with the right checksum."""
        path = self.folder / "panel.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(echarts.MEMBER, script)
        return mock.patch.object(echarts, "download", lambda distribution, folder: path)

    def test_the_file_is_put_where_the_build_finds_it(self):
        with self.wheel(SCRIPT):
            echarts.main()
        self.assertEqual((self.folder / "echarts/echarts.min.js").read_bytes(), SCRIPT)
        self.assertGreater(self.build.stat().st_mtime, 1)

    def test_a_file_that_is_there_is_kept(self):
        with self.wheel(SCRIPT):
            echarts.main()
        os.utime(self.build, (1, 1))
        with mock.patch.object(echarts, "download", side_effect=AssertionError):
            echarts.main()
        self.assertEqual(self.build.stat().st_mtime, 1)

    def test_another_file_is_refused(self):
        with self.wheel(b"something else"), self.assertRaisesRegex(echarts.SetupError, "is not that of ECharts"):
            echarts.main()
        self.assertFalse((self.folder / "echarts/echarts.min.js").exists())

    def test_nothing_is_executed_but_a_download_by_pip(self):
        """The wheel is checked and read, neither installed nor executed, whatever else is on the PATH."""
        commands = []

        def run(command, **_):
            commands.append(command)
            return mock.Mock(returncode=0)

        with mock.patch("subprocess.run", run), self.assertRaisesRegex(echarts.SetupError, "pip downloaded no wheel"):
            echarts.main()
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        self.assertEqual([command[:5] for command in commands], [[*pip, "--version"], [*pip, "download"]])
        self.assertIn("--only-binary=:all:", commands[1])
        self.assertIn("--no-deps", commands[1])


if __name__ == "__main__":
    unittest.main()
