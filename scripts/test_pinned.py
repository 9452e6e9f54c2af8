"""All code from elsewhere is pinned by a hash: Python packages, crates, container images."""
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
DOCUMENTS = "*.md", "docs/*.md", "flower/*.md"


def lines(*patterns):
    """Every line of the files of these patterns with its place; lines that end in a backslash are joined with the next."""
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern) if path != Path(__file__).resolve()):
        for line in path.read_text().replace("\\\n", "").splitlines():
            yield f"{path.relative_to(ROOT)}: {line.strip()}", line


class Python(unittest.TestCase):
    def test_pip_installs_with_hashes_only(self):
        seen = 0
        for place, line in lines("Makefile", "flower/Containerfile", *DOCUMENTS, "scripts/*.py", "scripts/*.sh", "benches/*.py"):
            for command in re.findall(r"pip install\b[^`]*", line):
                # A user's wheel names the versions that it needs, and has no place for their hashes.
                if "fedanchor-*.whl" in command:
                    continue
                seen += 1
                self.assertIn("--require-hashes", command, place)
                # Building a package would fetch its tools without hashes.
                self.assertIn("--only-binary=:all:", command, place)
        self.assertGreater(seen, 3)

    def test_every_requirement_has_hashes(self):
        for wanted in sorted(REQUIREMENTS.glob("*.in")):
            text = wanted.with_suffix(".txt").read_text()
            listed = [line for line in text.replace("\\\n", "").splitlines() if line and not line.startswith("#")]
            for line in listed:
                self.assertRegex(line, r"^[a-z0-9.-]+==[\w.]+ (; [^#]+? )?( *--hash=sha256:[0-9a-f]{64})+$", wanted.name)
            for pin in wanted.read_text().split():
                self.assertTrue(any(line.startswith(f"{pin} ") for line in listed), f"{wanted.name}: {pin}: run `make requirements`")
        pairs = {path.stem for path in REQUIREMENTS.glob("*.in")}, {path.stem for path in REQUIREMENTS.glob("*.txt")}
        self.assertEqual(*pairs)


class Cargo(unittest.TestCase):
    VERBS = "bench|build|clean -p|clippy|doc|fetch|install|metadata|run|rustc|test"

    def test_commands_keep_the_lock_file(self):
        seen = 0
        for place, line in lines("Makefile", *DOCUMENTS, "scripts/*.sh", "examples/*/*.toml", "examples/*/src/*.rs"):
            for command in re.findall(rf"(?:\bcargo|\$\(CARGO\)) (?:{self.VERBS})\b[^`]*", line):
                seen += 1
                self.assertIn("--locked", command, place)
        self.assertGreater(seen, 20)

    def test_scripts_keep_the_lock_file(self):
        found = [pair for pair in lines("scripts/*.py", "benches/*.py") if re.search(r'\["cargo", "', pair[1])]
        self.assertGreater(len(found), 4)
        for place, line in found:
            self.assertIn('"--locked"', line, place)


class Container(unittest.TestCase):
    def test_images_have_a_digest(self):
        stages, defaults = set(), {}
        for place, line in lines("flower/Containerfile"):
            if argument := re.match(r"ARG (\w+)=(\S+)$", line):
                defaults[f"${{{argument[1]}}}"] = argument[2]
            if image := re.match(r"FROM (\S+) AS (\S+)", line):
                named = defaults.get(image[1], image[1])
                self.assertTrue(named in stages or re.search(r"@sha256:[0-9a-f]{64}$", named), place)
                stages.add(image[2])
        self.assertEqual(stages, {"base", "node", "coordinator"})


if __name__ == "__main__":
    unittest.main()
