"""Every accuracy quoted in README and docs is the one in the records under results/."""

import functools
import json
import pathlib
import re
import tempfile
import unittest

import keep_records
import records

ROOT = records.RESULTS.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Pages on which every accuracy must name its run, or say that it was published by others.
STRICT = [ROOT / "README.md", ROOT / "docs" / "results.md"]

# A number and the comment that names it: 87.5<!-- ... -->.
NAMED = re.compile(r"([+−-]?\d+(?:\.\d+)?)<!-- (.+?) -->")
# Comments on lines of their own, for output in code blocks: <!-- quoted: 70.90 = quick/seed0 final; ... -->.
LISTED = re.compile(r"<!-- quoted: (.+?) -->", re.DOTALL)
# What looks like an accuracy.
ACCURACY = re.compile(r"(?<![\d.,])(?:(?:\d{2}|100)\.\d+|\d{1,2}\.\d{1,2}(?= points?\b))(?![\d.]| (?:s|MiB|GiB|MB|KiB|ms)\b)")
PUBLISHED = "published"
# What others have published: the paper's tables, and what SemiFL's authors have with 250 labels (IID, Dir 0.1).
PAPER = ROOT / "crates" / "report" / "src" / "published.csv"
SEMIFL = ["88.2", "63.0"]
# What a row of a table says in a cell, and what the names of its runs then contain instead of the others here.
PARTITIONS = {"Dir 1000": "iid", "Dir 0.1": "dir"}
METHODS = {"FedAnchor": "fedanchor", "SemiFL": "semifl", "FedCon": "fedcon", "FedAvg with FixMatch": "fixmatch", "supervised: every client image labelled": "supervised"}


def number(text):
    return float(text.replace("−", "-"))


def claims(text):
    """The numbers of a page with the names of what they are."""
    found = [(digits, name) for digits, name in NAMED.findall(text) if not name.startswith("quoted:")]
    for listed in LISTED.findall(text):
        found += [tuple(part.strip() for part in claim.split("=", 1)) for claim in listed.split(";")]
    return found


def wrong(digits, name):
    """Why a claim does not hold, or nothing."""
    if name == PUBLISHED:
        return None if digits in published() else f"{digits}: is in no table that was published"
    try:
        measured = records.value(name)
    except (Exception, SystemExit) as problem:
        return f"{digits}: cannot read `{name}`: {problem!r}"
    decimals = len(digits.partition(".")[2])
    if abs(number(digits) - measured) > 0.5 * 10**-decimals + 1e-9:
        return f"{digits}: the records of `{name}` give {measured:.4f}"
    return None


@functools.cache
def published():
    lines = [line.split(",") for line in PAPER.read_text().splitlines() if not line.startswith("#")]
    return {line[lines[0].index("mean")] for line in lines[1:]} | set(SEMIFL)


def misplaced(text):
    """Rows of tables that quote a run of another partition or method than they say."""
    found = []
    for row in re.findall(r"^\|.*\|$", text, re.MULTILINE):
        cells = [cell.strip() for cell in row.split("|")]
        paths = [name.split()[0] for _, name in NAMED.findall(row)]
        for kind in (PARTITIONS, METHODS):
            for label in kind.keys() & set(cells):
                others = set(kind.values()) - {kind[label]}
                found += [f"{label}: {path}" for path in paths if kind[label] not in path and any(other in path for other in others)]
    return found


def unnamed(text):
    """What looks like an accuracy and names no run."""
    listed = {digits for digits, _ in claims(text)}
    code = "".join(re.findall(r"```.*?```", text, re.DOTALL))
    rest = re.sub(r"<!--.*?-->", "", re.sub(r"```.*?```", "", NAMED.sub("", text), flags=re.DOTALL), flags=re.DOTALL)
    return [found for found in ACCURACY.findall(rest)] + [f for f in ACCURACY.findall(code) if f not in listed]


class QuotedNumbers(unittest.TestCase):
    def test_every_named_number_is_in_the_records(self):
        problems, count = [], 0
        for page in PAGES:
            for digits, name in claims(page.read_text()):
                count += name != PUBLISHED
                problem = wrong(digits, name)
                if problem:
                    problems.append(f"{page.relative_to(ROOT)}: {problem}")
        self.assertEqual(problems, [])
        self.assertGreater(count, 20)

    def test_every_quoted_record_is_complete(self):
        quoted = {run for page in PAGES for _, name in claims(page.read_text()) if name != PUBLISHED for run in records.runs(name)}
        quoted |= {file.parent for file in (records.RESULTS / "screening").rglob("config.toml")}  # the effects
        lacking = {str(run): records.incomplete(run) for run in sorted(quoted)}
        self.assertEqual({run: names for run, names in lacking.items() if names}, {})
        self.assertGreater(len(quoted), 150)

    def test_a_record_that_lacks_something_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            run = pathlib.Path(folder) / "runs" / "cell" / "seed0"
            run.mkdir(parents=True)
            settings, path = 'preset = "best"\n\n[data]\nname = "sample"\n', 'path = "/home/somebody/data"\n'
            (run / "config.toml").write_text(settings + path)
            for name in ["rounds.jsonl", "partition.json", "model.safetensors", *keep_records.TABLES]:
                (run / name).write_text("")
            for commit, needed in (("unknown", []), ("9eecf32", keep_records.TABLES)):
                (run / "summary.json").write_text(json.dumps({"version": "0.1.0", "commit": commit}))
                kept = pathlib.Path(folder) / commit / "cell" / "seed0"
                keep_records.keep(run, kept)
                self.assertEqual(sorted(path.name for path in kept.iterdir()), sorted(["config.toml", "rounds.jsonl", "summary.json", *keep_records.TABLES]))
                self.assertEqual((kept / "config.toml").read_text(), settings)
                self.assertEqual(records.incomplete(kept), [])
                for table in keep_records.TABLES:
                    (kept / table).unlink()
                self.assertEqual(records.incomplete(kept), needed)
                (kept / "config.toml").unlink()
                self.assertEqual(records.incomplete(kept), ["config.toml", *needed])
            # The same as a line.
            sweep = pathlib.Path(folder) / "sweep"
            line = keep_records.line(run, "cell/seed0")
            self.assertEqual(line["config"], settings)
            for name in ("complete", "config", "confusion"):
                without = {key: value for key, value in line.items() if key != name}
                sweep.with_name(name).with_suffix(".jsonl").write_text(json.dumps(without) + "\n")
                self.assertEqual(records.incomplete(sweep.with_name(name) / "cell" / "seed0"), [name] if name in line else [])

    def test_every_accuracy_names_its_run(self):
        found = {str(page.relative_to(ROOT)): unnamed(page.read_text()) for page in STRICT}
        self.assertEqual({page: numbers for page, numbers in found.items() if numbers}, {})

    def test_rows_quote_the_runs_that_they_name(self):
        found = {str(page.relative_to(ROOT)): misplaced(page.read_text()) for page in PAGES}
        self.assertEqual({page: rows for page, rows in found.items() if rows}, {})

    def test_a_run_in_the_wrong_row_is_noticed(self):
        row = "| Dir 1000 | SemiFL | 90.36<!-- best/cifar10-500-{}-{}/seed0 last10 --> |"
        self.assertEqual(misplaced(row.format("iid", "semifl")), [])
        self.assertEqual(misplaced(row.format("dir", "semifl")), ["Dir 1000: best/cifar10-500-dir-semifl/seed0"])
        self.assertEqual(misplaced(row.format("iid", "fedanchor")), ["SemiFL: best/cifar10-500-iid-fedanchor/seed0"])

    def test_a_wrong_number_is_noticed(self):
        name = "screening-2/iid-none/seed12 validation"
        measured = records.value(name)
        self.assertIsNone(wrong(f"{measured:.2f}", name))
        self.assertIn("give", wrong(f"{measured + 0.02:.2f}", name))
        self.assertIn("cannot read", wrong("1.0", "screening-2/iid-none/seed99 final"))
        self.assertIsNone(wrong("81.73", PUBLISHED))
        self.assertIn("no table", wrong("61.73", PUBLISHED))
        self.assertEqual(claims("a 3.5<!-- x/y final --> b <!-- quoted: 4.25 = z best -->"), [("3.5", "x/y final"), ("4.25", "z best")])
        self.assertEqual(unnamed("77.1 and 80.2<!-- x final --> in 12.5 s, by 3.1 points"), ["77.1", "3.1"])


if __name__ == "__main__":
    unittest.main()
