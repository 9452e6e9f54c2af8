#!/usr/bin/env python3
"""Executes notebooks, each in a new folder:  python scripts/notebooks.py NOTEBOOK...

A cell that fails ends it with the cell's error. The notebooks themselves stay as they are, without outputs.
"""
import os
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat

SECONDS_PER_CELL = 600


def execute(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(notebook, timeout=SECONDS_PER_CELL, resources={"metadata": {"path": folder}})
        client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        # A command of the shell fails without an exception.
        for output in cell.outputs:
            text = output.get("text", "")
            if output.output_type == "stream" and text.startswith("error:"):
                sys.exit(f"{path}: {cell.source}\n{text}")
    return cells


def main():
    # `!python` in a cell is the Python of this environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for path in map(Path, sys.argv[1:]):
        cells = execute(path)
        print(f"{path}: {len(cells)} cells")
        if os.environ.get("SHOW_OUTPUTS"):
            for cell in cells:
                for output in cell.outputs:
                    print(str(output.get("text") or output.get("data", {}).get("text/plain", output))[:1500])


if __name__ == "__main__":
    main()
