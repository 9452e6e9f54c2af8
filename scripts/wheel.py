#!/usr/bin/env python3
"""Builds the Python package as a wheel, and tries it where there is nothing else:

    python3 scripts/wheel.py --maturin PROGRAM   # build and check the file: what `make wheel` does
    python3 scripts/wheel.py --install WHEEL     # install it in a new virtual environment, and use it there

The wheel has the program, the module and the CUDA kernels, and no libtorch: that is the one of the package `torch`, of
the version that the extension module is compiled for. The kernels are a library of their own, compiled against the CUDA
version of libtorch, which is loaded where `torch` has CUDA and a run asks for a GPU.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import libtorch
from dist import DistError, REPOSITORY, crate_licences, dynamic, linked_packages, newest, output_of

PACKAGE = REPOSITORY / "crates/python"
MOST_BYTES = 40_000_000
KERNELS = "libfedanchor_cuda.so"
# Of the package `torch`, and of every Linux system.
THEIRS = {"libtorch.so", "libtorch_cpu.so", "libc10.so"}
CUDA = {"libtorch_cuda.so", "libc10_cuda.so", "libcudart.so.13"}
SYSTEM = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# The newest symbols of libstdc++ that systems with a version of glibc have: the policies of manylinux.
LIBSTDCXX = {(2, 28): (3, 4, 25), (2, 34): (3, 4, 29), (2, 35): (3, 4, 30), (2, 38): (3, 4, 32), (2, 39): (3, 4, 33)}


def version_of(text):
    return tuple(map(int, text.split(".")))


def platform_tag(glibc, libstdcxx, machine):
    """The tag of the oldest systems that have these versions of the libraries."""
    for policy, newest_symbols in LIBSTDCXX.items():
        if policy >= version_of(glibc) and newest_symbols >= version_of(libstdcxx):
            return f"manylinux_{policy[0]}_{policy[1]}_{machine}"
    raise DistError(f"no tag is known for glibc {glibc} and libstdc++ {libstdcxx}")


def write_licences(folder, metadata):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for source in ("LICENSE-MIT", "LICENSE-APACHE"):
        shutil.copyfile(REPOSITORY / source, folder / source)
    shutil.copyfile(REPOSITORY / "crates/data/assets/mnist.LICENSE", folder / "sample-CC-BY-SA-3.0.txt")
    (folder / "crates.txt").write_text(crate_licences(linked_packages(metadata, "fedanchor-python")), encoding="utf-8")


def build(maturin):
    """The wheel, with the tag of what its extension module really needs."""
    target = REPOSITORY / "target"
    machine = re.search(r"host: (\w+)", output_of(["rustc", "-vV"])).group(1)
    platform = re.search(r"host: (\S+)", output_of(["rustc", "-vV"])).group(1)
    metadata = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", platform]
    write_licences(PACKAGE / "licences", json.loads(output_of(metadata, cwd=REPOSITORY)))
    folder = target / "wheels"
    shutil.rmtree(folder, ignore_errors=True)

    def built(tag):
        # Its own check knows no libraries of another package.
        options = ["--release", "--locked", "--strip", "--auditwheel", "skip", "--compatibility", tag]
        command = [maturin, "build", "--manifest-path", PACKAGE / "Cargo.toml", "--out", folder, *options]
        if subprocess.run(command, cwd=REPOSITORY, env=environment).returncode != 0:
            raise DistError("the build failed: see above")
        return next(folder.glob("*.whl"))

    environment = {**os.environ, "FEDANCHOR_CUDA_SET": str(libtorch.fetched(cuda=True))}
    kernels = PACKAGE / "fedanchor" / KERNELS
    kernels.unlink(missing_ok=True)
    wheel = built("linux")
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(wheel) as archive:
            module = Path(archive.extract("fedanchor/_native.abi3.so", scratch))
        check_library(module, THEIRS)
        compiled = max((target / "release/build").glob(f"fedanchor-cuda-*/out/{KERNELS}"), key=os.path.getmtime)
        subprocess.run(["strip", "-o", kernels, compiled], check=True)
        check_library(kernels, THEIRS | CUDA)
        symbols = "".join(output_of(["readelf", "-VW", library]) for library in (module, kernels))
    tag = platform_tag(newest("GLIBC", symbols), newest("GLIBCXX", symbols), machine)
    wheel.unlink()
    return built(tag)


def check_library(path, theirs, read=dynamic):
    """A library of the package needs those of `torch` and of every system, and looks for them nowhere else."""
    needed, places = read(path)
    unknown = sorted(set(needed) - theirs - SYSTEM)
    if unknown:
        raise DistError(f"{path.name} needs {', '.join(unknown)}, which a system may not have")
    if places:
        raise DistError(f"{path.name} looks for libraries in {', '.join(places)}")


def check_size(wheel):
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        raise DistError(f"{wheel.name} has {size / 1e6:.1f} MB: at most {MOST_BYTES / 1e6:.0f} MB were planned")
    return size


def install(wheel, index):
    """Installs the wheel in a new virtual environment with an empty home and no compiler; prints seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        home = place / "home"
        home.mkdir()
        # Neither Rust nor a compiler.
        tools = place / "bin"
        tools.mkdir()
        for name in ("env", "sh"):
            (tools / name).symlink_to(shutil.which(name))
        environment = {"HOME": str(home), "PATH": str(tools), **index}
        start = time.monotonic()
        output_of([sys.executable, "-m", "venv", place / "venv"], env=environment)
        python, program = place / "venv/bin/python", place / "venv/bin/fedanchor"
        output_of([python, "-m", "pip", "install", "--quiet", wheel], env=environment)
        installed = time.monotonic()
        command = [program, "run", "--set", "rounds=1", "--set", "compare=false", "--out", place / "run"]
        print(output_of(command, env=environment, cwd=place).strip())
        ran = time.monotonic()
        print(f"installed in {installed - start:.0f} s, first round {ran - installed:.0f} s later")
        code = (
            "import fedanchor, torch; from pathlib import Path\n"
            f"run = fedanchor.Run({str(place / 'run')!r}); model = fedanchor.Model.load(run); net = model.to_torch()\n"
            "pixels = torch.randint(0, 256, (4, 28, 28, 1), dtype=torch.uint8)\n"
            "ours, theirs = model.predict(pixels), net(pixels)['probabilities']\n"
            "assert all(abs(a.probabilities[c] - t[i]) < 1e-5 for a, t in zip(ours, theirs) for i, c in enumerate(model.classes))\n"
            "print('the module and torch have the same outputs')"
        )
        print(output_of([python, "-c", code], env=environment, cwd=place).strip())
        # Without a GPU: the kernels find all that they need in `torch`.
        code = "import fedanchor._native as native; print('CUDA kernels:', native.load_kernels() or 'loaded')"
        print(output_of([python, "-c", code], env=environment, cwd=place).strip())


def main():
    arguments = argparse.ArgumentParser(description="Build the wheel, or try it in a new environment.")
    arguments.add_argument("--maturin", type=Path, help="build it with this program")
    arguments.add_argument("--install", metavar="WHEEL", type=Path, help="install this wheel and use it")
    options = arguments.parse_args()
    # Where pip finds packages.
    index = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    try:
        if options.maturin:
            wheel = build(options.maturin)
            print(f"{wheel.relative_to(REPOSITORY)}: {check_size(wheel) / 1e6:.1f} MB")
        if options.install:
            install(options.install.resolve(), index)
    except (DistError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
