#!/usr/bin/env python3
"""A preprocessor of mdBook: links from docs/ to other files of the repository.

On a code host `../crates/core` is a link like any other, but a site contains the pages of docs/ alone. There, such a link
points to `preprocessor.repository.base` in book.toml or, without it, into the checkout.
"""

import json
import os
import pathlib
import re
import sys

# The target of a link or an image.
TARGET = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)")


def rewritten(text, page, source, root, base):
    """The page's text with links that leave the folder `source` of the repository pointing to `base`."""

    def target(found):
        path = os.path.normpath(root / source / page.parent / found.group(1))
        if pathlib.Path(path).is_relative_to(root / source):
            return found.group(1)
        return f"{base}/{os.path.relpath(path, root)}"

    return TARGET.sub(target, text)


def chapters(items):
    """Every chapter, those below others included."""
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            yield item["Chapter"]
            yield from chapters(item["Chapter"]["sub_items"])


def main():
    context, book = json.load(sys.stdin)
    root, config = pathlib.Path(context["root"]), context["config"]
    base = config["preprocessor"]["repository"].get("base") or root.resolve().as_uri()
    for chapter in chapters(book["items"]):
        if chapter["path"]:
            page = pathlib.Path(chapter["path"])
            chapter["content"] = rewritten(chapter["content"], page, config["book"]["src"], root, base)
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    if sys.argv[1:2] != ["supports"]:  # every renderer is supported
        main()
