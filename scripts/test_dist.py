"""What goes into the archive of `make dist`, and what it says about licences."""
import hashlib
import os
import sys
import tarfile
import tempfile
import unittest
import unittest.mock
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
import dist

READELF = """
Dynamic section at offset 0x1234 contains 9 entries:
  Tag        Type                         Name/Value
 0x000000000000001d (RUNPATH)            Library runpath: [$ORIGIN/../lib:/home/me/lib]
 0x0000000000000001 (NEEDED)             Shared library: [libtorch_cpu.so]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000e (SONAME)             Library soname: [libx.so]
"""


def package(folder, name, licence="MIT", files=(), version="1.0.0", **more):
    place = folder / f"{name}-{version}"
    place.mkdir()
    for file, text in dict(files).items():
        (place / file).write_text(text)
    return {"id": name, "name": name, "version": version, "license": licence, "license_file": None,
            "manifest_path": str(place / "Cargo.toml"), "repository": None, **more}


class Targets(unittest.TestCase):
    def test_this_machine_needs_no_tools_of_another(self):
        target = dist.Target()
        self.assertEqual((target.is_native, target.runner, target.strip, target.environment), (True, [], "strip", {}))

    def test_another_processor_has_debians_tools_unless_the_user_names_others(self):
        mine = {"CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER": "emulator -x"}
        with mock.patch("platform.machine", return_value="x86_64"), mock.patch("shutil.which", return_value="/bin/tool"):
            with mock.patch.dict(os.environ, mine):
                target = dist.Target("aarch64-unknown-linux-gnu")
        self.assertFalse(target.is_native)
        self.assertEqual((target.machine, target.runner, target.strip), ("aarch64", ["emulator", "-x"], "aarch64-linux-gnu-strip"))
        self.assertEqual(target.environment, {"CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER": "aarch64-linux-gnu-gcc"})

    def test_a_missing_tool_is_named(self):
        with mock.patch("platform.machine", return_value="x86_64"), mock.patch("shutil.which", return_value=None):
            with self.assertRaisesRegex(dist.DistError, "aarch64-linux-gnu-strip is missing: install it"):
                dist.Target("aarch64-unknown-linux-gnu")


class Linked(unittest.TestCase):
    def test_readelf_is_understood(self):
        self.assertEqual(dist.parse_dynamic(READELF), (["libtorch_cpu.so", "libc.so.6"], ["$ORIGIN/../lib", "/home/me/lib"]))

    def test_libraries_are_followed_and_only_ours_are_taken(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            needs = {"program": ["libtorch_cpu.so", "libc.so.6"], "libtorch_cpu.so": ["libc10.so", "libm.so.6"],
                     "libc10.so": ["libtorch_cpu.so", "libc.so.6"], "libunused.so": []}
            for name in needs:
                (folder / name).write_text("")
            ours, others = dist.libraries(folder / "program", folder, lambda path: (needs[path.name], []))
        self.assertEqual([path.name for path in ours], ["libc10.so", "libtorch_cpu.so"])
        self.assertEqual(others, ["libc.so.6", "libm.so.6"])

    def test_places_outside_the_archive_are_found(self):
        places = {"a": ["$ORIGIN/../lib"], "b": ["$ORIGIN", "/home/me/lib"], "c": []}
        self.assertEqual(dist.absolute_paths("abc", lambda file: ([], places[file])), ["/home/me/lib"])

    def test_versions_are_compared_as_numbers(self):
        text = "Name: GLIBC_2.9 Flags\nName: GLIBC_2.34\nName: GLIBC_2.4\nName: GLIBCXX_3.4.30\nName: GLIBCXX_3.4.9\nGLIBC_PRIVATE"
        self.assertEqual((dist.newest("GLIBC", text), dist.newest("GLIBCXX", text)), ("2.34", "3.4.30"))
        self.assertEqual(dist.newest("GLIBC", ""), "any version")


class Licences(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def test_only_what_is_linked_counts(self):
        def depends(name, kind):
            return {"pkg": name, "dep_kinds": [{"kind": kind, "target": None}]}

        nodes = [
            {"id": "cli", "deps": [depends("core", None), depends("tests", "dev"), depends("builds", "build")]},
            {"id": "core", "deps": [depends("serde", None)]},
            {"id": "serde", "deps": [depends("serde_core", None)]},
            *({"id": name, "deps": []} for name in ("serde_core", "tests", "builds", "elsewhere")),
        ]
        packages = [package(self.folder, node["id"]) for node in nodes]
        metadata = {"packages": packages, "workspace_members": ["cli", "core"], "resolve": {"nodes": nodes}}
        self.assertEqual([p["name"] for p in dist.linked_packages(metadata, "cli")], ["serde", "serde_core"])
        with self.assertRaisesRegex(dist.DistError, "no package nothing"):
            dist.linked_packages(metadata, "nothing")

    def test_every_crate_is_named_and_every_text_is_there_once(self):
        text = dist.crate_licences([
            package(self.folder, "a", "MIT OR Apache-2.0", {"LICENSE-MIT": "Do what\nyou like.", "LICENSE-APACHE": "Apache."}),
            package(self.folder, "b", "MIT", {"COPYING": "Do what you like.\n", "main.rs": "code"}),
            package(self.folder, "c", "ISC", repository="https://example.org/c"),
            package(self.folder, "d", None, {"terms.txt": "Ask first."}, license_file="terms.txt"),
        ])
        self.assertIn("a 1.0.0: MIT OR Apache-2.0\n", text)
        self.assertIn("c 1.0.0: ISC (without a text in the package) https://example.org/c\n", text)
        self.assertIn("d 1.0.0: see its text below\n", text)
        self.assertEqual(text.count("Do what"), 1)
        self.assertIn("a 1.0.0, b 1.0.0\n", text)
        self.assertIn("Ask first.", text)
        self.assertNotIn("code", text)


class Archive(unittest.TestCase):
    def test_the_same_content_is_the_same_archive(self):
        digests = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch) / "fedanchor-1"
                (folder / "bin").mkdir(parents=True)
                (folder / "README").write_text("read me")
                (folder / "bin/fedanchor").write_text("program")
                (folder / "bin/fedanchor").chmod(0o700)
                archive = Path(scratch) / "x.tar.gz"
                dist.pack(folder, archive)
                digests.append(hashlib.sha256(archive.read_bytes()).hexdigest())
                with tarfile.open(archive) as tar:
                    modes = {member.name: oct(member.mode) for member in tar.getmembers()}
        self.assertEqual(digests[0], digests[1])
        self.assertEqual(modes, {"fedanchor-1": "0o755", "fedanchor-1/README": "0o644",
                                 "fedanchor-1/bin": "0o755", "fedanchor-1/bin/fedanchor": "0o755"})

    def test_the_licences_of_what_is_embedded_are_in_it(self):
        with tempfile.TemporaryDirectory() as scratch, mock.patch.object(dist, "linked_packages", lambda *_: []):
            (Path(scratch) / "licenses").mkdir()
            dist.copy_licences(Path(scratch) / "LICENSES", Path(scratch), {})
            found = {path.name: path.read_text() for path in (Path(scratch) / "LICENSES").glob("*.txt")}
        self.assertIn("Attribution-ShareAlike 3.0", found["sample-CC-BY-SA-3.0.txt"])
        self.assertIn("Apache License", found["fedanchor-Apache-2.0.txt"])

    def test_trunks_come_with_their_licence_and_source(self):
        with tempfile.TemporaryDirectory() as scratch:
            source, folder, licence = (Path(scratch) / name for name in ("source", "trunks", "licence.txt"))
            source.mkdir()
            with self.assertRaisesRegex(dist.DistError, "efficientnet-lite0.safetensors is missing: run `make trunks`"):
                dist.copy_trunks(folder, source, licence)
            folder.rmdir()
            for name in dist.trunks.TRUNKS:
                description = {"licence": "Apache-2.0", "source": f"the authors of {name}"}
                weights = {"conv1.weight": ((1,), bytes(4))}
                (source / f"{name}.safetensors").write_bytes(dist.trunks.safetensors(weights, description))
            dist.copy_trunks(folder, source, licence)
            self.assertEqual({path.stem for path in folder.iterdir()}, set(dist.trunks.TRUNKS))
            text = licence.read_text()
        self.assertIn("efficientnet-lite2: Apache-2.0, the authors of efficientnet-lite2\n", text)
        self.assertIn(dist.trunks.COPYRIGHT, text)
        self.assertIn("TERMS AND CONDITIONS", text)

    def test_an_archive_that_lacks_libtorchs_licence_is_not_made(self):
        with tempfile.TemporaryDirectory() as scratch:
            with self.assertRaisesRegex(dist.DistError, "licenses is missing: an archive must contain"):
                dist.copy_licences(Path(scratch) / "LICENSES", Path(scratch), {})


class Commit(unittest.TestCase):
    def test_a_program_of_another_commit_is_not_packed(self):
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            program = root / "program"

            def says(text):
                program.write_text(f"#!/bin/sh\necho 'fedanchor 0.1.0 ({text})'\n")
                program.chmod(0o755)
                return dist.named_commit(program, root)

            self.assertEqual(says("commit unknown"), "fedanchor 0.1.0 (commit unknown)")  # no checkout
            git = ["git", "-C", scratch, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
            for command in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message", "words"]):
                dist.output_of([*git, *command])
            commit = dist.output_of([*git, "rev-parse", "HEAD"])[:12]
            with unittest.mock.patch.dict(os.environ):
                os.environ.pop("FEDANCHOR_COMMIT", None)
                self.assertEqual(says(commit), f"fedanchor 0.1.0 ({commit})")
                with self.assertRaisesRegex(dist.DistError, "build it again"):
                    says("0123456789ab")
                os.environ["FEDANCHOR_COMMIT"] = "0123456789ab"
                self.assertEqual(says("0123456789ab"), "fedanchor 0.1.0 (0123456789ab)")


if __name__ == "__main__":
    unittest.main()
