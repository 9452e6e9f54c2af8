#!/usr/bin/env python3
"""Prints the import graph of a crate's modules, and fails if it has a cycle:

    python3 scripts/import_graph.py crates/core/src crates/engine/src

Two graphs are checked: between the folders (and single files) at the top of the source tree, and between all
files. A file imports another if it names it in a path that starts with `crate::` or `super::`; names that a
`mod.rs` re-exports with `pub use` count for the file that defines them. A parent module and its children form
one unit and may refer to each other. Test modules are left out: they may use whatever makes a test short.
"""
import re
import sys
from pathlib import Path

TESTS = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub\S*\s+)?mod\s+\w+\s*(?:;|\{.*)", re.S)
COMMENT = re.compile(r"//[^\n]*")
PATH = re.compile(r"\b(crate|super)((?:::super)*)::((?:\w+::)*)(\{|\w+)")


def module_of(path, root):
    """`federation/admission.rs` is ("federation", "admission"); `mod.rs` is its folder, `lib.rs` the root."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    if parts[-1] in ("mod", "lib", "main"):
        parts.pop()
    return tuple(parts)


def code_of(text):
    return COMMENT.sub("", TESTS.sub("", text))


def expand(code, start):
    """The names of a use tree that begins with `{` at `start`: `a::{b, c}` gives ["a::b", "a::c"]."""
    names, stack, word, at = [], [""], "", start + 1
    while at < len(code):
        letter = code[at]
        if letter == "{":
            stack.append(stack[-1] + word)
            word = ""
        elif letter in ",}":
            if word.strip():
                names.append(stack[-1] + word.split(" as ")[0].strip())
            word = ""
            if letter == "}":
                stack.pop()
                if not stack:
                    return names
        else:
            word += "" if letter.isspace() and not word.strip() else letter
        at += 1
    return names


def imports(code, module):
    """Every path that the code names, as a tuple of names from the crate's root."""
    found = set()
    for match in PATH.finditer(code):
        start, ups, middle, last = match.groups()
        base = () if start == "crate" else module[: len(module) - 1 - ups.count("super")]
        middle = tuple(part for part in middle.split("::") if part)
        rests = expand(code, match.end() - 1) if last == "{" else [last]
        for rest in rests:
            names = tuple(part for part in rest.split("::") if part and part != "self")
            found.add(base + middle + names)
    return found


def reexports(sources):
    """For every module, the names that it re-exports and the module that each comes from."""
    table = {}
    for module, code in sources.items():
        for match in re.finditer(r"pub(?:\([^)]*\))? use ((?:\w+::)+)(\{|\w+)", code):
            origin = tuple(part for part in match.group(1).split("::") if part)
            if origin[0] in ("crate", "self", "super") or module + origin[:1] not in sources:
                continue
            last = match.group(2)
            names = expand(code, match.end() - 1) if last == "{" else [last]
            for name in names:
                table[module + (name,)] = module + origin + (name,)
    return table


def resolve(path, sources, table):
    """The module that a path leads to."""
    for _ in range(8):
        hit = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in table), None)
        if hit is None:
            break
        path = table[hit] + path[len(hit) :]
    return next((path[:n] for n in range(len(path), -1, -1) if path[:n] in sources), ())


def graph_of(root):
    """For every file's module, the modules that it imports; parents and children aside."""
    sources = {module_of(path, root): code_of(path.read_text()) for path in sorted(root.rglob("*.rs"))}
    table = reexports(sources)
    graph = {}
    for module, code in sources.items():
        targets = {resolve(path, sources, table) for path in imports(code, module)}
        related = lambda a, b: a[: len(b)] == b or b[: len(a)] == a
        graph[module] = {target for target in targets if not related(module, target)}
    graph.pop((), None)
    return graph


def folders_of(graph):
    folders = {}
    for module, targets in graph.items():
        here = folders.setdefault(module[0], set())
        here |= {target[0] for target in targets if target and target[0] != module[0]}
    return folders


def cycle_in(graph):
    """A cycle as a list of nodes, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node) :] + [node]
        if node in done:
            return None
        path.append(node)
        for target in sorted(graph.get(node, ())):
            found = visit(target)
            if found:
                return found
        path.pop()
        done.add(node)
        return None

    for node in sorted(graph):
        found = visit(node)
        if found:
            return found
    return None


def main(roots):
    if not roots:
        print(__doc__)
        return 2
    status = 0
    for root in map(Path, roots):
        graph = graph_of(root)
        folders = folders_of(graph)
        print(f"{root}: {len(graph)} files")
        # In the order of the data: what imports nothing first.
        order, left = [], dict(folders)
        while left:
            free = sorted(name for name, targets in left.items() if not targets & left.keys() - {name})
            order += free or sorted(left)
            left = {} if not free else {n: t for n, t in left.items() if n not in free}
        for name in order:
            print(f"  {name:12} <- {', '.join(sorted(folders[name])) or '-'}")
        for kind, checked in (("folders", folders), ("files", graph)):
            cycle = cycle_in(checked)
            if cycle:
                status = 1
                names = ["::".join(node) if isinstance(node, tuple) else node for node in cycle]
                print(f"  cycle between {kind}: {' -> '.join(names)}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
