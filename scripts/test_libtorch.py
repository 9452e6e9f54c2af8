"""Every failure to set up libtorch gives one line that says what to do."""
import contextlib
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
import libtorch


def fake_wheel(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


class SetUp(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        quiet = contextlib.redirect_stderr(io.StringIO())
        quiet.__enter__()
        self.addCleanup(quiet.__exit__, None, None, None)

    def pip_that_serves(self, members):
        """A pip that downloads a wheel with these members, and the wheel's sha256."""
        source = self.folder / "source.whl"
        digest = fake_wheel(source, members)

        def pip(arguments):
            target = Path(arguments[arguments.index("--dest") + 1])
            name, version = arguments[-1].split("==")
            (target / f"{name}-{version}-py3-none-any.whl").write_bytes(source.read_bytes())

        return pip, digest

    def test_the_cpu_version_has_only_headers_and_cpu_libraries(self):
        members = {f"torch/lib/{name}": name for name in libtorch.CPU_LIBRARIES}
        members |= {"torch/lib/libtorch_cuda.so": "x", "torch/include/a/b.h": "header", "torch/nn/x.py": "x"}
        pip, digest = self.pip_that_serves(members)
        target = self.folder / "set"
        libtorch.install_cpu(target, pip, [("fake", "1", digest)])
        self.assertEqual({p.name for p in (target / "lib").iterdir()}, libtorch.CPU_LIBRARIES)
        self.assertEqual((target / "include/a/b.h").read_text(), "header")
        self.assertEqual(sorted(p.name for p in target.iterdir()), ["include", "lib"])

    def test_a_wrong_checksum_is_rejected_and_leaves_no_files(self):
        pip, digest = self.pip_that_serves({"torch/lib/libtorch.so": "changed"})
        target = self.folder / "set"
        with self.assertRaises(libtorch.SetupError) as caught:
            libtorch.install_cpu(target, pip, [("fake", "1", "0" * 64)])
        self.assertRegex(str(caught.exception), f"wrong checksum: expected sha256 0+, found {digest}: .*run the same command again")
        self.assertFalse(target.exists())

    def test_every_wheel_of_the_cuda_version_is_checked(self):
        members = {f"nvidia/cu13/lib/lib{name}": name for name in ("cudart.so.13", "cudnn.so.9", "cublas.so.13")}
        pip, digest = self.pip_that_serves(members)
        target = self.folder / "set"
        with self.assertRaisesRegex(libtorch.SetupError, "other-2.*wrong checksum"):
            libtorch.install_cuda(target, pip, [("fake", "1", digest), ("other", "2", "0" * 64)])
        self.assertFalse(target.exists())
        libtorch.install_cuda(target, pip, [("fake", "1", digest), ("other", "2", digest)])
        self.assertEqual((target / "nvidia/cu13/lib/libcudnn.so.9").read_text(), "cudnn.so.9")
        for name, version, checksum in libtorch.CUDA_SET:
            self.assertRegex(checksum, "^[0-9a-f]{64}$", f"{name} {version}")

    def test_a_failed_download_is_reported_in_one_line(self):
        outcomes = [mock.Mock(returncode=0), mock.Mock(returncode=1, stderr="noise\nERROR: Connection broken: 3 bytes read\nmore\n")]
        with mock.patch.object(subprocess, "run", side_effect=outcomes), self.assertRaises(libtorch.SetupError) as caught:
            libtorch.run_pip(["download"])
        self.assertIn("the download failed (Connection broken: 3 bytes read): check the network", str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def test_a_missing_pip_is_named(self):
        with mock.patch.object(subprocess, "run", return_value=mock.Mock(returncode=1)):
            with self.assertRaisesRegex(libtorch.SetupError, "^pip is missing: install it"):
                libtorch.run_pip(["download"])

    def test_missing_tools_are_named(self):
        with mock.patch.dict(os.environ, {"PATH": str(self.folder)}, clear=True):
            with self.assertRaisesRegex(libtorch.SetupError, "^no C\\+\\+ compiler found: install one"):
                libtorch.check_tools()
            compiler = self.folder / "c++"
            compiler.write_text("#!/bin/sh\n")
            compiler.chmod(0o755)
            with self.assertRaisesRegex(libtorch.SetupError, "^cargo is missing: install Rust"):
                libtorch.check_tools()

    def test_unsupported_systems_get_instructions(self):
        with mock.patch("platform.machine", return_value="riscv64"):
            with self.assertRaisesRegex(libtorch.SetupError, "not Linux on riscv64: put libtorch"):
                libtorch.check_tools()

    def test_a_link_is_replaced_but_a_folder_is_not(self):
        repository = self.folder / "clone"
        repository.mkdir()
        libtorch.link(self.folder / "one", repository)
        libtorch.link(self.folder / "two", repository)
        self.assertEqual(Path(os.readlink(repository / "libtorch")), self.folder / "two")
        (repository / "libtorch").unlink()
        (repository / "libtorch").mkdir()
        with self.assertRaisesRegex(libtorch.SetupError, "is not a link made by this script"):
            libtorch.link(self.folder / "one", repository)

    def test_an_existing_libtorch_is_kept(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("LIBTORCH", None)
            self.assertFalse(libtorch.is_ready(self.folder))
            for place in ("libtorch/lib/libtorch_cpu.so", "libtorch/include/x.h"):
                (self.folder / place).parent.mkdir(parents=True)
                (self.folder / place).write_text("")
            self.assertTrue(libtorch.is_ready(self.folder))

    def test_an_interrupt_gives_no_stack_trace(self):
        with mock.patch.object(libtorch, "check_tools", side_effect=KeyboardInterrupt), mock.patch.object(sys, "argv", ["x"]):
            with self.assertRaises(SystemExit) as caught:
                libtorch.main()
        self.assertEqual(caught.exception.code, "error: interrupted: run the same command again")


if __name__ == "__main__":
    unittest.main()
