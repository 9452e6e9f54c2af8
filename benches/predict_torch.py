"""Predict all pictures of a folder in PyTorch with WRN-28-2, as `fedanchor predict --format csv` does; see predict.py.

    python3 benches/predict_torch.py FOLDER [--forward]

`--forward` prints only the seconds of the forward passes, after a warm-up. Channels last, the faster layout on a CPU.
"""
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from step_torch import Wrn28x2

BATCH = 250
MEAN, STD = torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.25, 0.25, 0.25])


def read(path):
    return np.asarray(Image.open(path).convert("RGB"))


def batches(paths):
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        pixels = pool.map(read, paths, chunksize=BATCH)
        for start in range(0, len(paths), BATCH):
            yield paths[start : start + BATCH], np.stack([next(pixels) for _ in paths[start : start + BATCH]])


def main():
    paths = sorted(Path(sys.argv[1]).iterdir())
    alone = "--forward" in sys.argv
    model = Wrn28x2().to(memory_format=torch.channels_last).eval()
    seconds = 0.0
    with torch.inference_mode():
        if alone:
            model(torch.zeros(BATCH, 3, 32, 32).to(memory_format=torch.channels_last))
        for names, pixels in batches(paths):
            images = ((torch.from_numpy(pixels) / 255 - MEAN) / STD).permute(0, 3, 1, 2)
            before = time.perf_counter()
            found = model(images).softmax(1).max(1)
            seconds += time.perf_counter() - before
            if not alone:
                for name, value, index in zip(names, found.values.tolist(), found.indices.tolist()):
                    print(f"{name},{index},{value}")
    if alone:
        print(seconds)


if __name__ == "__main__":
    main()
