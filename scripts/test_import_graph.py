"""The modules of the crates import each other without cycles, and the check finds cycles."""
import tempfile
import unittest
from pathlib import Path

import import_graph

REPOSITORY = Path(__file__).resolve().parent.parent


class ImportGraph(unittest.TestCase):
    def test_no_crate_has_a_cycle(self):
        for name in ("data", "engine", "core", "report", "cli"):
            graph = import_graph.graph_of(REPOSITORY / "crates" / name / "src")
            self.assertGreater(sum(map(len, graph.values())), 5, name)
            self.assertIsNone(import_graph.cycle_in(graph), name)
            self.assertIsNone(import_graph.cycle_in(import_graph.folders_of(graph)), name)

    def test_the_order_of_the_stages(self):
        stages = ["aggregation", "privacy", "messages", "config", "labels", "server", "methods", "experiment", "clients", "federation"]
        stages += ["trunk", "simulation", "model", "run"]
        folders = import_graph.folders_of(import_graph.graph_of(REPOSITORY / "crates/core/src"))
        for at, stage in enumerate(stages):
            later = folders[stage] & set(stages[at + 1 :])
            self.assertFalse(later, f"{stage} imports {later}, which come after it")
        self.assertEqual(set(folders) - {"disk", "error"}, set(stages))

    def check(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            graph = import_graph.graph_of(Path(folder))
            return import_graph.cycle_in(graph), import_graph.cycle_in(import_graph.folders_of(graph))

    def test_a_cycle_between_files_is_found(self):
        files = {"lib.rs": "mod a;", "a/mod.rs": "mod x; mod y;", "a/x.rs": "use super::y::Y;"}
        self.assertEqual(self.check(files | {"a/y.rs": ""}), (None, None))
        cycle, folders = self.check(files | {"a/y.rs": "fn f() { crate::a::x::g() }"})
        self.assertEqual((cycle, folders), ([("a", "x"), ("a", "y"), ("a", "x")], None))

    def test_a_cycle_between_folders_is_found_through_re_exports(self):
        files = {
            "lib.rs": "mod a; mod b;",
            "a/mod.rs": "mod x; mod y;\npub use x::{X, Other};\npub use y::Y;",
            "a/x.rs": "",
            "a/y.rs": "use crate::b::{self, B};",
            "b.rs": "use crate::a::X;",
        }
        files_cycle, folders = self.check(files)
        self.assertIsNone(files_cycle)
        self.assertEqual(folders, ["a", "b", "a"])

    def test_tests_and_comments_do_not_count(self):
        files = {
            "lib.rs": "mod a; mod b;",
            "a.rs": "// crate::b::B\n#[cfg(test)]\nmod tests { use crate::b::B; }",
            "b.rs": "use crate::a::A;",
        }
        self.assertEqual(self.check(files), (None, None))


if __name__ == "__main__":
    unittest.main()
