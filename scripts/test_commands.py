"""`make demo` and `cargo run` run `fedanchor`, although the workspace has several programs."""

import json
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Program(unittest.TestCase):
    def test_the_one_that_cargo_runs(self):
        command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
        found = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
        default = [package for package in found["packages"] if package["id"] in found["workspace_default_members"]]
        programs = [target["name"] for package in default for target in package["targets"] if "bin" in target["kind"]]
        self.assertEqual(programs, ["fedanchor"])


if __name__ == "__main__":
    unittest.main()
