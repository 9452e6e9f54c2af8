#!/usr/bin/env python3
"""Set up Apache ECharts for this clone:  python3 scripts/echarts.py

The page of `fedanchor report` draws its figures with ECharts, which is embedded into the program. The file
is taken from the wheel of Panel, a Python package that carries it as its authors published it: pip, which is
needed for libtorch anyway, downloads the wheel, and nothing in it is installed or executed. Wheel and file
are verified against the checksums below, and the file is put into `echarts` in this clone, where the build
finds it. Without ECharts the program still builds, and its pages show the figures as plain SVG.
"""
import hashlib
import os
import sys
import tempfile
import zipfile
from pathlib import Path

from libtorch import SetupError, download

VERSION = "6.0.0"
FILE = "echarts.min.js"
SHA256 = "baa8dfe7e1d9336b98e8986ba7e20ea15e7cdbea1ef42a59d59478632fa45a1d"
# Distribution, version, sha256 of its wheel.
WHEEL = ("panel", "1.9.4", "c89c4c1e728297daf0628ea5070fb0da8ad77781e2a3142d302479537c1de6a4")
MEMBER = f"panel/dist/bundled/echarts/echarts@{VERSION}/dist/{FILE}"
REPOSITORY = Path(__file__).resolve().parent.parent


def main():
    target = REPOSITORY / "echarts" / FILE
    if target.exists() and hashlib.sha256(target.read_bytes()).hexdigest() == SHA256:
        return
    print(f"fetching ECharts {VERSION}, which the wheel of {WHEEL[0]} carries", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(download(WHEEL, Path(scratch))) as wheel:
            script = wheel.read(MEMBER)
    if hashlib.sha256(script).hexdigest() != SHA256:
        raise SetupError(f"{FILE} in {WHEEL[0]} {WHEEL[1]} is not that of ECharts {VERSION}; this is a bug in scripts/echarts.py, please report it")
    target.parent.mkdir(exist_ok=True)
    part = target.with_suffix(".part")
    part.write_bytes(script)
    os.replace(part, target)
    # The build looks for the file only if its script is new.
    os.utime(REPOSITORY / "crates/report/build.rs")


if __name__ == "__main__":
    try:
        main()
    except (SetupError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("error: interrupted: run the same command again")
