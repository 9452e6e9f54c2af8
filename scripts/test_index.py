"""results/index.csv has the runs under results/ with the numbers of their records, and records are complete and small."""

import gzip
import json
import pathlib
import tempfile
import unittest

import hostile_figure
import index
import keep_records
import records

IMAGES = records.RESULTS.parent / "docs/images"


def lacking(run):
    """The files that a record lacks: those with a known commit have the tables."""
    known = json.loads((run / "summary.json").read_text()).get("commit", "unknown") != "unknown"
    needed = ["config.toml", *(keep_records.TABLES if known else [])]
    return [name for name in needed if not (run / name).exists()]


class Index(unittest.TestCase):
    def test_rows_have_the_numbers_of_the_records(self):
        rows = records.load_index()
        found = [row for row, _ in index.rows()]
        self.assertGreater(len(found), 1000)
        for row in found:
            self.assertEqual(rows[row["run"]], row | {"settings": rows[row["run"]]["settings"]})
        self.assertEqual(list(rows), sorted(rows))

    def test_records_are_complete_and_small(self):
        runs = [file.parent for file in records.RESULTS.rglob("summary.json")]
        self.assertEqual({str(run): lacking(run) for run in runs if lacking(run)}, {})
        files = [file for file in records.RESULTS.rglob("*") if file.is_file()]
        self.assertLess(sum(file.stat().st_size for file in files), 5_000_000)

    def test_the_figure_of_hostile_clients_is_that_of_the_index(self):
        self.assertEqual((IMAGES / "hostile.csv").read_text(), hostile_figure.table())
        self.assertEqual((IMAGES / "hostile.svg").read_text(), hostile_figure.figure())

    def test_settings_are_those_that_differ_from_the_preset(self):
        config = 'preset = "best"\nseed = 3\nrounds = 500\n[data]\nanchors = 250\n[client]\nbatch = 10\n'
        config += '[partition]\nkind = "lda"\nalpha = 0.1\n[server]\nmomentum = 0.5\n[method]\nname = "fedanchor"\n'
        config += 'server_mixup = false\nthreshold = { rule = "rising", from = 0.6, to = 0.95 }\n'
        expected = "data.anchors=250; partition.alpha=0.1; method.server_mixup=false"
        self.assertEqual(index.differences(config), expected)


class KeepRecords(unittest.TestCase):
    def test_a_record_is_kept_without_paths_of_this_machine(self):
        with tempfile.TemporaryDirectory() as folder:
            run, kept = pathlib.Path(folder) / "run", pathlib.Path(folder) / "kept"
            run.mkdir()
            settings, path = 'preset = "best"\n\n[data]\nname = "sample"\n', 'path = "/home/somebody/data"\n'
            (run / "config.toml").write_text(settings + path)
            (run / "summary.json").write_text(json.dumps({"commit": "9eecf32"}))
            for name in ["rounds.jsonl", "partition.json", "model.safetensors", *keep_records.TABLES]:
                (run / name).write_text("{}\n")
            keep_records.keep(run, kept)
            names = ["config.toml", "rounds.jsonl.gz", "summary.json", *keep_records.TABLES]
            self.assertEqual(sorted(path.name for path in kept.iterdir()), sorted(names))
            self.assertEqual((kept / "config.toml").read_text(), settings)
            self.assertEqual(gzip.decompress((kept / "rounds.jsonl.gz").read_bytes()), b"{}\n")
            self.assertEqual(lacking(kept), [])
            keep_records.keep(run, kept.with_name("plain"), uncompressed=True)
            self.assertEqual((kept.with_name("plain") / "rounds.jsonl").read_text(), "{}\n")
            line = keep_records.line(run, "cell/seed0")
            self.assertEqual((line["run"], line["config"]), ("cell/seed0", settings))
            (run / "summary.json").unlink()
            self.assertEqual(keep_records.line(run, "cell/seed0")["stopped"], "ended after round 0")


if __name__ == "__main__":
    unittest.main()
