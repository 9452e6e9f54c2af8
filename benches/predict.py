#!/usr/bin/env python3
"""Compare `fedanchor predict` with the same work in PyTorch, on the same cores.

    python3 benches/predict.py [PICTURES]        [default: 10000]

WRN-28-2 in single precision on colour pictures of 32 x 32 pixels, as PNG files. Both programs are started fresh, read all files, decode
and predict them in batches of 250, and write a line per picture; PyTorch decodes with Pillow in as many processes as there are
cores. They alternate, three times each; the output is the median of each and of the ratios of neighbours, the time of PyTorch's
forward passes alone, and the peak memory of `predict` for a tenth of the pictures and for all.

PyTorch (with numpy and Pillow) is that of the interpreter that runs this script, or of the one named by TORCH_PYTHON; if it
cannot be imported, its lines read "not measured".
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = int(sys.argv[1]) if len(sys.argv) > 1 else 10000
PROGRAM = os.environ.get("FEDANCHOR", str(ROOT / "target/release/fedanchor"))
# Spinning threads distort timings on a busy machine; both programs get the same policy.
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "FEDANCHOR_CACHE": ""} | os.environ
TORCH = os.environ.get("TORCH_PYTHON", sys.executable)
TURNS = 3


def png(seed):
    """A colour picture of 32 x 32 pixels: soft shapes that depend on the seed."""
    rows = bytearray()
    for y in range(32):
        rows.append(0)
        for x in range(32):
            rows += bytes(((x * (3 + seed % 5) + y * c + seed * 7) // 2) % 256 for c in (2, 5, 9))
    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
    head = (32).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b"")


def write_pictures(folder):
    for part, count in (("labelled/a", 10), ("labelled/b", 10), ("unlabelled", 20), ("test/a", 2), ("test/b", 2)):
        (folder / part).mkdir(parents=True)
        for number in range(count):
            (folder / part / f"{number}.png").write_bytes(png(number))
    new = folder / "new"
    new.mkdir()
    for number in range(PICTURES):
        (new / f"{number:06}.png").write_bytes(png(number))
    return new


def train(folder):
    """The shortest run that writes a model of WRN-28-2 with ten outputs' worth of work; accuracy does not matter here."""
    settings = ["rounds=1", "data.anchors=0", "data.clients=2", "partition.kind=iid", "client.per_round=1", "client.epochs=1",
                "pretrain.epochs=1", "server.epochs=1", f"data.path={folder}", "data.name=bench", "data.size=32"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    quick = folder / "bench.toml"
    quick.write_text('preset = "best"\n')
    subprocess.run([PROGRAM, "-q", "run", str(quick), *arguments, "--out", str(folder / "run")], check=True, env=ENVIRONMENT,
                   stdout=subprocess.DEVNULL)
    return folder / "run"


def timed(command):
    """Seconds of a command and its peak memory in MiB."""
    before = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"failed: {command}")
    return time.perf_counter() - before, usage.ru_maxrss / 1024


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        new = write_pictures(folder)
        run = train(folder)
        ours = [PROGRAM, "predict", str(run), str(new), "--format", "csv"]
        theirs = [TORCH, str(ROOT / "benches/predict_torch.py"), str(new)]
        has_torch = subprocess.run([TORCH, "-c", "import torch, numpy, PIL"], capture_output=True).returncode == 0
        times, torch_times = [], []
        for _ in range(TURNS):
            times.append(timed(ours)[0])
            if has_torch:
                torch_times.append(timed(theirs)[0])
        print(f"fedanchor predict: {statistics.median(times):.2f} s for {PICTURES} pictures")
        if has_torch:
            ratio = statistics.median(b / a for a, b in zip(times, torch_times))
            print(f"PyTorch:           {statistics.median(torch_times):.2f} s, {ratio:.2f} times as long")
            forward = subprocess.run([*theirs, "--forward"], capture_output=True, text=True, check=True, env=ENVIRONMENT)
            print(f"PyTorch, forward passes alone: {float(forward.stdout.strip()):.2f} s")
        else:
            print("PyTorch: not measured")
        tenth = folder / "tenth"
        tenth.mkdir()
        for path in sorted(new.iterdir())[: PICTURES // 10]:
            os.link(path, tenth / path.name)
        few = timed([PROGRAM, "predict", str(run), str(tenth), "--format", "csv"])[1]
        print(f"peak memory of fedanchor predict: {few:.0f} MiB for {PICTURES // 10}, {timed(ours)[1]:.0f} MiB for {PICTURES}")


if __name__ == "__main__":
    main()
