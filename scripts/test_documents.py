"""Links in documents lead to existing targets, the site has all pages, and excerpts are code of the project."""

import pathlib
import re
import tempfile
import unittest

import book_links
import check_links

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


class Links(unittest.TestCase):
    def test_every_link_of_the_documents_leads_somewhere(self):
        self.assertEqual(check_links.problems([*sorted(ROOT.glob("*.md")), DOCS]), [])

    def test_the_site_has_every_page(self):
        listed = re.findall(r"\]\((.+?)\)", (DOCS / "SUMMARY.md").read_text())
        there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
        self.assertEqual(there - {"SUMMARY.md"}, set(listed))
        self.assertEqual(len(listed), len(set(listed)))

    def test_every_image_is_shown_somewhere(self):
        pages = [ROOT / "README.md", *DOCS.glob("*.md")]
        shown = {link.rpartition("images/")[2] for page in pages for link in check_links.markdown(page.read_text())[1]}
        self.assertEqual([image.name for image in (DOCS / "images").iterdir() if image.name not in shown], [])

    def check(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                (pathlib.Path(folder) / name).write_text(text)
            return [problem.removeprefix(f"{folder}/") for problem in check_links.problems([folder])]

    def test_broken_links_of_markdown_are_named(self):
        page = "# A `b.c` title\n\n## Twice\n\n## Twice\n\n<a id=\"x.y\"></a>\n\n```\n# no heading\n[no](link)\n```\n"
        good = "[1](a.md#a-bc-title) [2](#twice-1) [3](a.md#x.y) [4](https://x.y/z) `[5](code)` <!-- [6](no) -->"
        self.assertEqual(self.check({"a.md": page + good}), [])
        self.assertEqual(
            self.check({"a.md": page + "[1](b.md) [2](a.md#no-heading) ![3](c.png)"}),
            [
                "a.md: b.md: there is no such file",
                "a.md: a.md#no-heading: there is no such heading",
                "a.md: c.png: there is no such file",
            ],
        )

    def test_broken_links_of_a_site_are_named(self):
        page = '<h1 id="one">One</h1><a href="b.html#two">2</a><a href="#one">1</a><img src="c.png">'
        self.assertEqual(
            self.check({"a.html": page, "b.html": "<p>none</p>"}),
            ["a.html: b.html#two: there is no such heading", "a.html: c.png: there is no such file"],
        )

    def test_links_that_leave_the_site_lead_to_the_repository(self):
        def rewritten(text, page="a.md"):
            return book_links.rewritten(text, pathlib.Path(page), "docs", pathlib.Path("/r"), "https://h/r")

        self.assertEqual(rewritten("[a](../crates/x.rs) and [b](../C.md#d)"), "[a](https://h/r/crates/x.rs) and [b](https://h/r/C.md#d)")
        for inside in ("[a](b.md#c)", "[a](#c)", "![a](images/b.svg)", "[a](https://x.y/../z)"):
            self.assertEqual(rewritten(inside), inside)
        self.assertEqual(rewritten("[a](../b.md) [c](../../d)", "sub/a.md"), "[a](../b.md) [c](https://h/r/d)")


class Lines(unittest.TestCase):
    def test_lines_fit_a_screen(self):
        pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
        lines = [(page, number, line) for page in pages for number, line in enumerate(page.read_text().splitlines(), 1)]
        self.assertEqual([f"{page.relative_to(ROOT)}:{number}" for page, number, line in lines if len(line) > 120], [])


class Guarantees(unittest.TestCase):
    """Tests and files that the page on reliability names exist."""

    def test_named_tests_and_files_exist(self):
        page = (DOCS / "reliability.md").read_text()
        folders = ["crates", "examples", "flower", "scripts", "xtask"]
        sources = [path for name in folders for kind in ("rs", "py") for path in (ROOT / name).rglob(f"*.{kind}")]
        sources = [path for path in sources if not {"target", "site-packages"} & set(path.parts)]
        functions = set(re.findall(r"\b(?:fn|def) (\w+)", "".join(path.read_text() for path in sources)))
        tests = [name for name in re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){3,})`", page)]
        self.assertGreater(len(tests), 50)
        self.assertEqual([name for name in tests if name not in functions], [])
        files = re.findall(r"`((?:\w+/)+\w+\.(?:rs|py))`", page)
        self.assertGreater(len(files), 10)
        self.assertEqual([name for name in files if not ((ROOT / name).exists() or (ROOT / "crates" / name).exists())], [])


class Excerpts(unittest.TestCase):
    def test_the_method_of_the_walkthrough_is_the_example(self):
        source = "".join(path.read_text() for path in sorted((ROOT / "examples/fedprox/src").glob("*.rs")))
        excerpts = re.findall(r"^```rust\n(.*?)^```", (DOCS / "adding-a-method.md").read_text(), re.MULTILINE | re.DOTALL)
        self.assertGreater(len(excerpts), 4)
        self.assertEqual([excerpt for excerpt in excerpts if excerpt not in source], [])


if __name__ == "__main__":
    unittest.main()
