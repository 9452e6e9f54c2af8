#!/usr/bin/env python3
"""Packs the program with what it needs into one archive, and runs it from there:

    python3 scripts/dist.py                   # build, pack, check: what `make dist` does
    python3 scripts/dist.py --check ARCHIVE   # only check an archive
    python3 scripts/dist.py --target aarch64-unknown-linux-gnu

The last one builds for another processor. It needs the target's standard library (`rustup target add`, or Debian's
package libstd-rust-web-dev:arm64 with rustc-web), a cross compiler (`g++-aarch64-linux-gnu`) and `qemu-user-static`, in
which the program runs to write its manual pages and to be checked.

The archive, target/dist/fedanchor-VERSION-PLATFORM.tar.gz, needs neither Rust nor Python: the program looks for
libtorch in ../lib (a relative runpath, which crates/engine/build.rs writes) and for pretrained trunks in `trunks` beside
itself; the other libraries that it needs are part of every Linux system with a C++ library. The check runs it in a root
folder that contains only the archive and those system libraries, and starts a run with every trunk; the emulator runs a
round on a few pictures.
"""
import argparse
import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import libtorch as libtorch_sets
import trunks

REPOSITORY = Path(__file__).resolve().parent.parent
RUNPATH = "$ORIGIN/../lib"
SHELLS = {"bash": "fedanchor.bash", "zsh": "_fedanchor", "fish": "fedanchor.fish", "powershell": "fedanchor.ps1", "elvish": "fedanchor.elv"}
LICENCE_FILE = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)

README = """{name} for {platform}

    bin/fedanchor run experiments/quick.toml     # a first experiment, on images that are part of the program
    bin/fedanchor init PICTURES                  # an experiment with pictures of your own
    bin/fedanchor --help

Needs Linux with glibc {glibc} or later and a C++ library (libstdc++) with {libstdcxx} or later; neither Rust nor Python.
Keep bin and lib side by side: the program finds libtorch in ../lib.

bin/trunks:  networks trained on ImageNet, for photographs: `model.trunk = "efficientnet-lite0"`
completions: for bash, zsh, fish, PowerShell and elvish; for example `source completions/fedanchor.bash`
man:         manual pages; for example `man man/fedanchor-run.1`
flower-requirements.txt: Flower, for a fleet: `pip install --require-hashes --only-binary=:all: -r flower-requirements.txt`
LICENSES:    of the program, its images, the trunks, libtorch and all crates
"""


FEW_PICTURES = """
preset = "best"
data = {{ name = "pictures", path = "{path}", anchors = 0, clients = 1 }}
partition.kind = "iid"
model.name = "small"
batch_norm.statistics = "static-server"
client.per_round = 1
"""


class DistError(Exception):
    """A problem and what to do about it, in one line."""


def output_of(command, **options):
    outcome = subprocess.run(command, capture_output=True, text=True, **options)
    if outcome.returncode != 0:
        raise DistError(f"{' '.join(map(str, command))}: {outcome.stderr.strip() or 'failed without a reason'}")
    return outcome.stdout


# Shared libraries and the libraries they need.


def parse_dynamic(text):
    """The libraries that a file needs and the places where it looks for them, from `readelf -d`."""
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
    paths = [path for found in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", text) for path in found.split(":")]
    return needed, paths


def dynamic(path):
    return parse_dynamic(output_of(["readelf", "-d", path]))


def libraries(program, folder, read=dynamic):
    """The libraries in `folder` that the program needs, directly or not, and the names of all others."""
    ours, others, queue = [], set(), [program]
    while queue:
        for name in read(queue.pop())[0]:
            path = folder / name
            if not path.is_file():
                others.add(name)
            elif path not in ours:
                ours.append(path)
                queue.append(path)
    return sorted(ours), sorted(others)


def absolute_paths(files, read=dynamic):
    """The places outside the archive where its files look for libraries."""
    return sorted({path for file in files for path in read(file)[1] if not path.startswith("$ORIGIN")})


def newest(prefix, text):
    """The newest version of a library's symbols, from `readelf -V`: GLIBC_2.9 is older than GLIBC_2.34."""
    versions = {tuple(map(int, found.split("."))) for found in re.findall(rf"\b{prefix}_(\d+(?:\.\d+)*)", text)}
    return ".".join(map(str, max(versions))) if versions else "any version"


# Licences.


def linked_packages(metadata, root):
    """The packages that end up in a program, by `cargo metadata`: no tests, no build scripts, none of the workspace."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    start = next((id for id, package in packages.items() if package["name"] == root), None)
    if start is None:
        raise DistError(f"there is no package {root}: run this script in the repository")
    seen, queue = {start}, [start]
    while queue:
        for dependency in nodes[queue.pop()]["deps"]:
            linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if linked and dependency["pkg"] not in seen:
                seen.add(dependency["pkg"])
                queue.append(dependency["pkg"])
    members = set(metadata["workspace_members"])
    found = [packages[id] for id in seen - members]
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def licence_files(package):
    folder = Path(package["manifest_path"]).parent
    named = [folder / package["license_file"]] if package.get("license_file") else []
    beside = [path for path in folder.iterdir() if path.is_file() and LICENCE_FILE.match(path.name)]
    return sorted({path.resolve() for path in named + beside if path.is_file()})


def crate_licences(packages):
    """One text for all crates: the licence of each, then every distinct licence text with its crates."""
    lines, texts = ["The crates of fedanchor, and their licences.", ""], {}
    for package in packages:
        name = f"{package['name']} {package['version']}"
        files = licence_files(package)
        place = package.get("repository") or package.get("homepage") or ""
        remark = "" if files else " (without a text in the package)"
        lines.append(f"{name}: {package['license'] or 'see its text below'}{remark} {place}".rstrip())
        for file in files:
            text = file.read_text(encoding="utf-8", errors="replace").strip()
            key = hashlib.sha256("".join(text.split()).encode()).hexdigest()
            texts.setdefault(key, (text, []))[1].append(name)
    for text, names in texts.values():
        lines += ["", "=" * 80, ", ".join(dict.fromkeys(names)), "=" * 80, "", text]
    return "\n".join(lines) + "\n"


def copy_trunks(folder, source, licence):
    """The pretrained trunks, and a text with the licence and the source of each."""
    folder.mkdir()
    lines = ["The files in bin/trunks: the published weights, converted to safetensors without ImageNet's classes.", trunks.COPYRIGHT, ""]
    for name in trunks.TRUNKS:
        path = source / f"{name}.safetensors"
        if not path.is_file():
            raise DistError(f"{path} is missing: run `make trunks`")
        stated = trunks.statement(path)
        lines.append(f"{name}: {stated['licence']}, {stated['source']}")
        shutil.copyfile(path, folder / path.name)
    licence.write_text("\n".join([*lines, "", (REPOSITORY / "LICENSE-APACHE").read_text()]))


def copy_licences(folder, libtorch, metadata):
    folder.mkdir()
    for name, source in {
        "fedanchor-MIT.txt": REPOSITORY / "LICENSE-MIT",
        "fedanchor-Apache-2.0.txt": REPOSITORY / "LICENSE-APACHE",
        "sample-CC-BY-SA-3.0.txt": REPOSITORY / "crates/data/assets/mnist.LICENSE",
    }.items():
        shutil.copyfile(source, folder / name)
    theirs = libtorch / "licenses"
    if not theirs.is_dir():
        raise DistError(f"{theirs} is missing: an archive must contain libtorch's licence; use the set that `make libtorch` downloads")
    shutil.copytree(theirs, folder / "libtorch")
    (folder / "crates.txt").write_text(crate_licences(linked_packages(metadata, "fedanchor-cli")), encoding="utf-8")


# The archive.


def pack(folder, archive):
    """The folder as a .tar.gz that depends on nothing but its content."""
    def plain(entry):
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = "root"
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    aside = archive.with_name(archive.name + ".part")
    with open(aside, "wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for path in [folder, *sorted(folder.rglob("*"))]:
                tar.add(path, arcname=str(path.relative_to(folder.parent)), recursive=False, filter=plain)
    aside.rename(archive)


class Target:
    """The processor that an archive is for, and the tools for it: those of this machine, or Debian's for another one.

    Cargo's own variables, CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER and _RUNNER, name others.
    """

    def __init__(self, triple=None):
        self.triple = triple
        self.machine = triple.partition("-")[0] if triple else platform.machine()
        self.is_native = self.machine == platform.machine()
        self.runner, self.strip, self.environment = [], "strip", {}
        if not self.is_native:
            gnu = f"{self.machine}-linux-gnu"
            variable = f"CARGO_TARGET_{triple.upper().replace('-', '_')}"
            self.strip = f"{gnu}-strip"
            self.environment = {f"{variable}_LINKER": os.environ.get(f"{variable}_LINKER", f"{gnu}-gcc")}
            self.runner = os.environ.get(f"{variable}_RUNNER", f"qemu-{self.machine}-static -L /usr/{gnu}").split()
            for tool in (self.strip, self.environment[f"{variable}_LINKER"], self.runner[0]):
                if not shutil.which(tool):
                    raise DistError(f"{tool} is missing: install it (on Debian: apt-get install g++-{gnu} qemu-user-static)")

    def run(self, program, *words):
        return output_of([*self.runner, program, *words])


def build(target, libtorch):
    environment = {**os.environ, **target.environment, "FEDANCHOR_RUNPATH": RUNPATH, "LIBTORCH": str(libtorch)}
    command = ["cargo", "build", "--release", "--locked", "-p", "fedanchor-cli", "--bin", "fedanchor"]
    command += ["--target", target.triple] if target.triple else []
    if subprocess.run(command, cwd=REPOSITORY, env=environment).returncode != 0:
        raise DistError("the build failed: see above")
    triple = target.triple or re.search(r"host: (\S+)", output_of(["rustc", "-vV"])).group(1)
    metadata = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", triple]
    return json.loads(output_of(metadata, cwd=REPOSITORY)), triple


def fill(folder, libtorch, metadata, triple, target):
    """Everything that belongs into the archive."""
    program = folder / "bin" / "fedanchor"
    program.parent.mkdir(parents=True)
    shutil.copy2(Path(metadata["target_directory"]) / (target.triple or "") / "release" / "fedanchor", program)
    output_of([target.strip, program])
    lib = folder / "lib"
    lib.mkdir()
    needed, _ = libraries(program, libtorch / "lib")
    for library in needed:
        shutil.copy2(library, lib / library.name)
    outside = absolute_paths([program, *lib.iterdir()])
    if outside:
        raise DistError(f"the program looks for libraries in {', '.join(outside)}: build it with FEDANCHOR_RUNPATH='{RUNPATH}'")
    copy_licences(folder / "LICENSES", libtorch, metadata)
    copy_trunks(program.parent / "trunks", trunks.default_folder(), folder / "LICENSES/trunks-Apache-2.0.txt")
    (folder / "experiments").mkdir()
    shutil.copyfile(REPOSITORY / "experiments/quick.toml", folder / "experiments/quick.toml")
    shutil.copyfile(REPOSITORY / "requirements/flower.txt", folder / "flower-requirements.txt")
    (folder / "completions").mkdir()
    for shell, name in SHELLS.items():
        (folder / "completions" / name).write_text(target.run(program, "completions", shell))
    target.run(program, "man", "--out", folder / "man")
    symbols = "".join(output_of(["readelf", "-VW", file]) for file in [program, *lib.iterdir()])
    glibc, libstdcxx = newest("GLIBC", symbols), "GLIBCXX_" + newest("GLIBCXX", symbols)
    readme = README.format(name=named_commit(program, run=target.run), platform=triple, glibc=glibc, libstdcxx=libstdcxx)
    (folder / "README").write_text(readme)


def named_commit(program, repository=REPOSITORY, run=lambda *command: output_of(command)):
    """The version that the program prints. Packed in a checkout, it must contain the commit."""
    name = run(program, "--version").strip()
    if (repository / ".git").exists() and "FEDANCHOR_COMMIT" not in os.environ:
        commit = output_of(["git", "-C", repository, "rev-parse", "HEAD"]).strip()
        if commit[:12] not in name:
            raise DistError(f"the program says it is {name}, but the checkout is at {commit[:12]}: build it again")
    return name


# The check.


def system_libraries(program):
    """The files outside the archive that the system's loader finds for the program."""
    listed = output_of(["ldd", program], env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")})
    if "not found" in listed:
        raise DistError(f"{program}: {'; '.join(line.strip() for line in listed.splitlines() if 'not found' in line)}")
    inside = program.parent.parent.resolve()
    found = [Path(path) for path in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", listed, re.MULTILINE)]
    return [path for path in found if inside not in path.resolve().parents]


def confined(root):
    """A command that makes `root` the root of the file system, or none where the system allows nobody to. The loader
    needs /proc there to find out where the program is."""
    (root / "proc").mkdir()
    tool = shutil.which("unshare")
    for rights in ([], ["--map-root-user"]):
        prefix = [tool, *rights, "--pid", "--fork", "--mount-proc", "--root", str(root)]
        probe = [*prefix, "/opt/fedanchor/bin/fedanchor", "--version"]
        if tool and subprocess.run(probe, capture_output=True, env={}).returncode == 0:
            return prefix
    return None


def check(archive, target):
    """Unpacks the archive and runs the program in an otherwise empty root folder, or in an emulator; returns its output."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        (root / "opt").mkdir(parents=True)
        (root / "tmp").mkdir()
        with tarfile.open(archive) as tar:
            tar.extractall(root / "opt", filter="data")
        unpacked = next((root / "opt").iterdir())
        unpacked = unpacked.rename(root / "opt" / "fedanchor")
        missing = [name for name in trunks.TRUNKS if not (unpacked / f"bin/trunks/{name}.safetensors").is_file()]
        if missing:
            raise DistError(f"{archive}: lacks the trunks {', '.join(missing)}")
        files = [unpacked / "bin/fedanchor", *sorted((unpacked / "lib").iterdir())]
        outside = absolute_paths(files)
        if outside:
            raise DistError(f"{archive}: looks for libraries in {', '.join(outside)}")
        for library in system_libraries(files[0]) if target.is_native else []:
            copy = root / library.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, copy)
        prefix, place = (confined(root), "/opt/fedanchor") if target.is_native else (None, None)
        if not target.is_native:
            prefix, place = target.runner, str(unpacked)
        elif prefix is None:
            print("note: cannot change the root directory on this system: checked in a clean environment only", file=sys.stderr)
            prefix, place = [], str(unpacked)
        program, tmp = f"{place}/bin/fedanchor", Path("/tmp" if prefix and target.is_native else root / "tmp")

        def say(*words):
            # Without a cache there are no trunks but those of the archive.
            environment = {"OMP_WAIT_POLICY": "PASSIVE", "FEDANCHOR_CACHE": ""}
            return output_of([*prefix, program, *words], env=environment, cwd=scratch)

        def run(experiment, name, *settings):
            short = ["rounds=1", "compare=false", "pretrain.epochs=2", *settings]
            said = say("run", experiment, "--out", tmp / name, *(word for key in short for word in ("--set", key)))
            if not (root / "tmp" / name / "model.safetensors").is_file():
                raise DistError(f"{archive}: a run of one round wrote no model")
            return said

        said = [say("--version"), say("data", "check", "sample")]
        say("data", "example", tmp / "pictures", "--labelled", "2")
        for part in [root / "tmp/pictures/unlabelled", *(root / "tmp/pictures/test").iterdir()]:
            for picture in sorted(part.iterdir())[2:]:  # these are enough, and every picture takes some tenths of a second
                picture.unlink()
        if not target.is_native:  # an emulator takes some hundred times as long
            (root / "tmp/experiment.toml").write_text(FEW_PICTURES.format(path=tmp / "pictures"))
            return [*said, run(tmp / "experiment.toml", "run")]
        said.append(run(f"{place}/experiments/quick.toml", "run"))
        say("init", tmp / "pictures", "--yes", "--trunk", next(iter(trunks.TRUNKS)), "--out", tmp / "experiment.toml")
        for name in trunks.TRUNKS:
            run(tmp / "experiment.toml", name, f"model.trunk={name}")
            said.append(f"a run of one round on the features of {name}")
        return said


def make(target):
    own = Path(os.environ.get("LIBTORCH") or REPOSITORY / "libtorch").resolve()
    libtorch = own if target.is_native else libtorch_sets.fetched(cuda=False, machine=target.machine)
    if (libtorch / "lib/libtorch_cuda.so").exists():
        raise DistError("libtorch is the CUDA version, 5 GB: run `make libtorch CUDA=0` first")
    metadata, triple = build(target, libtorch)
    version = next(package["version"] for package in metadata["packages"] if package["name"] == "fedanchor-cli")
    name = f"fedanchor-{version}-{triple}"
    dist = Path(metadata["target_directory"]) / "dist"
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dist) as scratch:
        fill(Path(scratch) / name, libtorch, metadata, triple, target)
        pack(Path(scratch) / name, dist / f"{name}.tar.gz")
    return dist / f"{name}.tar.gz"


def main():
    arguments = argparse.ArgumentParser(description="Pack the program with libtorch and check the archive.")
    arguments.add_argument("--check", metavar="ARCHIVE", type=Path, help="only check this archive")
    arguments.add_argument("--target", metavar="TRIPLE", help="build for another processor, for example aarch64-unknown-linux-gnu")
    options = arguments.parse_args()
    try:
        target = Target(options.target)
        archive = options.check or make(target)
        for text in check(archive, target):
            print(text.strip())
        print(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB, runs by itself")
    except (DistError, libtorch_sets.SetupError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
