#!/usr/bin/env python3
"""Checks links between pages, without a network: files must exist, and so must the headings that links name.

    python3 scripts/check_links.py README.md docs       # Markdown, as a code host shows it
    python3 scripts/check_links.py target/book          # a site
"""

import html.parser
import pathlib
import re
import sys
import urllib.parse

FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`(?:[^`\n]|\n(?!\n))*`")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
ID = re.compile(r"<a id=\"([^\"]+)\">")


def slug(heading):
    """The anchor that a code host and mdBook give a heading: words in lower case, joined by hyphens."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text.lower()))


def markdown(text):
    """The anchors of a page, and what it links to."""
    text = COMMENT.sub("", FENCED.sub("", text))
    ids = set(ID.findall(text))
    for heading in HEADING.findall(text):
        name, number = slug(heading), 1
        anchor = name
        while anchor in ids:
            anchor, number = f"{name}-{number}", number + 1
        ids.add(anchor)
    return ids, LINK.findall(CODE.sub("", text))


class Anchors(html.parser.HTMLParser):
    """The anchors of a page of a site, and what it links to."""

    def __init__(self):
        super().__init__()
        self.ids, self.links = set(), []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.update(filter(None, [attributes.get("id"), attributes.get("name")]))
        self.links += filter(None, [attributes.get("href"), attributes.get("src")])


def site(text):
    parser = Anchors()
    parser.feed(text)
    return parser.ids, parser.links


KINDS = {".md": markdown, ".html": site}


def pages(paths):
    for path in map(pathlib.Path, paths):
        yield from (sorted(p for p in path.rglob("*") if p.suffix in KINDS) if path.is_dir() else [path])


def problems(paths):
    """The broken links of these pages."""
    read = {}

    def parts(page):
        if page not in read:
            read[page] = KINDS[page.suffix](page.read_text())
        return read[page]

    found = []
    for page in pages(paths):
        for link in parts(page)[1]:
            address = urllib.parse.urlsplit(link)
            if address.scheme not in ("", "file") or address.netloc:
                continue
            path = urllib.parse.unquote(address.path)
            target = page.parent / path if path else page
            if not target.exists():
                found.append(f"{page}: {link}: there is no such file")
            elif address.fragment and target.suffix in KINDS:
                if urllib.parse.unquote(address.fragment) not in parts(target)[0]:
                    found.append(f"{page}: {link}: there is no such heading")
    return found


def main(paths):
    count = len(list(pages(paths)))
    if not count:
        sys.exit(f"error: no pages in {' '.join(paths)}")
    wrong = problems(paths)
    if wrong:
        sys.exit("\n".join(f"error: {problem}" for problem in wrong))
    print(f"the links of {count} pages are sound")


if __name__ == "__main__":
    main(sys.argv[1:])
