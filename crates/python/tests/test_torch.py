"""`to_torch()` computes what the program does, for every model that it has. Needs torch; part of `make test-slow`."""

import json
import os
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import fedanchor

TOLERANCE = 1e-5
#: A model with weights that training has moved, after as little work as can be.
BRIEF = {
    "rounds": 1,
    "compare": False,
    "pretrain": {"epochs": 1},
    "client": {"per_round": 1, "epochs": 1},
    "data": {"anchors": 4, "clients": 2},
}


def images(count: int, side: int, channels: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, channels), dtype=np.uint8)


class Torch(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def compare(self, run: fedanchor.Run, pixels: np.ndarray, **options: object) -> None:
        model = fedanchor.Model.load(run, **options)
        network = model.to_torch().eval()
        with torch.no_grad():
            outputs = {name: value.numpy() for name, value in network(torch.from_numpy(pixels)).items()}
        expected = np.array([list(one.probabilities.values()) for one in model.predict(pixels)])
        found = {"probabilities": expected, "scores": model.scores(pixels), "latents": model.latents(pixels)}
        for name, values in found.items():
            if name in outputs:
                worst = np.abs(outputs[name] - values).max()
                self.assertLess(worst, TOLERANCE, (run.config["model"], name))
        self.assertIn("scores", outputs)
        np.testing.assert_allclose(torch.from_numpy(outputs["logits"]).softmax(1), expected, atol=TOLERANCE)

    def test_models_from_scratch(self) -> None:
        names = [one["const"] for one in _schema()["properties"]["model"]["properties"]["name"]["oneOf"]]
        self.assertLessEqual({"small", "wrn28x2", "resnet18"}, set(names))
        for channels in (1, 3):
            labels = np.arange(12) % 2
            data = fedanchor.Data((images(12, 16, channels, 0), labels), (images(8, 16, channels, 1), labels[:8]), 2)
            for name in names:
                if name.startswith(("adapter", "efficientnet")):
                    continue  # on a trunk only, below
                for norm in ("batch", "group"):
                    with self.subTest(name=name, norm=norm, channels=channels):
                        settings = {"model.name": name, "model.norm": norm}
                        out = self.folder / f"{name}-{norm}-{channels}"
                        run = fedanchor.run(BRIEF, set=settings, data=data, out=out)
                        self.compare(run, images(5, 16, channels, 2))

    def test_models_on_a_trunk(self) -> None:
        pictures = self.folder / "pictures"
        for part, count in [("labelled/a", 3), ("labelled/b", 3), ("unlabelled", 4), ("test/a", 2), ("test/b", 2)]:
            (pictures / part).mkdir(parents=True)
            for at, pixels in enumerate(images(count, 40, 3, len(part))):
                Image.fromarray(pixels).save(pictures / part / f"{at}.png")
        data = {"name": "pictures", "path": str(pictures), "anchors": 0, "clients": 2, "size": 64}
        for settings in [{}, {"model.unfreeze": "last"}, {"model.unfreeze": "all"}]:
            with self.subTest(settings):
                experiment = {**BRIEF, "data": data, "partition": {"kind": "iid"}, "model": {"trunk": "efficientnet-lite0"}}
                run = fedanchor.run(experiment, set=settings, out=self.folder / str(len(list(self.folder.iterdir()))))
                self.compare(run, images(3, 64, 3, 3))


def _schema() -> dict:
    return json.loads((Path(__file__).parents[3] / "docs/experiment.schema.json").read_text())


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    unittest.main(verbosity=2)
