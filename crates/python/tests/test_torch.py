"""`to_torch()` computes what the program does, for every model that it has. Needs torch; part of `make test-slow`."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
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


class Losses(unittest.TestCase):
    """`save_loss` writes what a run trains with, in a process that uses torch itself."""

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def run_with(self, loss: Path, name: str, **arguments: float) -> fedanchor.Run:
        sample = {"data": {**BRIEF["data"], "name": "sample", "anchors": 20}, "model": {"name": "small"}}
        experiment = {**BRIEF, **sample, "client": {**BRIEF["client"], "loss": {"file": str(loss), "arguments": arguments}}}
        return fedanchor.run(experiment, out=self.folder / name)

    def test_the_examples_are_what_their_source_says(self) -> None:
        examples = Path(__file__).parents[3] / "examples/python"
        for name in ("fedprox", "fix_mix"):
            with self.subTest(name):
                command = (
                    f"import sys, fedanchor; sys.path.insert(0, {str(examples)!r}); import {name} as example; "
                    f"fedanchor.save_loss(example.{name}, {str(self.folder / name)!r})"
                )
                subprocess.run([sys.executable, "-c", command], check=True)
                self.assertEqual((self.folder / name).read_bytes(), (examples / f"{name}.loss").read_bytes())

    def test_a_loss_reads_what_it_names(self) -> None:
        def everything(
            logits, features, latents, labels, sample_weights, mix_logits, mix_labels, mix_sample_weights, mix_lambda,
            weights, sent_weights, sent_logits, sent_features, round, a,
        ):
            apart = (weights - sent_weights).square().sum() + (logits - sent_logits).square().mean()
            length = (latents.square().sum(1) - 1).abs().max() + (features - sent_features).square().mean()
            mixed = F.cross_entropy(mix_logits, labels) * mix_lambda.mean() + mix_sample_weights.mean() * mix_labels.max()
            fix = (F.cross_entropy(logits, labels, reduction="none") * sample_weights).mean()
            return {"fix": fix + apart + length + mixed, "of_round": round + a + 0 * fix}

        run = self.run_with(fedanchor.save_loss(everything, self.folder / "all.loss"), "all", a=2)
        self.assertEqual(run.records[1]["losses"]["client_of_round"], 3)

    def test_the_same_function_has_the_same_bytes(self) -> None:
        def basic(logits, labels):
            return {"fix": F.cross_entropy(logits, labels)}

        state = torch.random.get_rng_state()
        first, second = (fedanchor.save_loss(basic, self.folder / name).read_bytes() for name in "ab")
        self.assertEqual(first, second)
        self.assertTrue(torch.equal(state, torch.random.get_rng_state()))

    def test_threads_write_the_same_bytes(self) -> None:
        def basic(logits, labels):
            return {"fix": F.cross_entropy(logits, labels)}

        with ThreadPoolExecutor(4) as threads:
            paths = threads.map(lambda at: fedanchor.save_loss(basic, self.folder / str(at)), range(12))
            self.assertEqual(len({path.read_bytes() for path in paths}), 1)

    def test_a_term_that_is_not_finite_hides_no_other(self) -> None:
        def rare(logits, labels):
            fix = F.cross_entropy(logits, labels)
            return {"fix": fix, "nothing": 0 / (labels < 0).float().sum() * fix.detach()}

        run = self.run_with(fedanchor.save_loss(rare, self.folder / "rare.loss"), "rare")
        losses = run.records[1]["losses"]
        self.assertGreater(losses["client_fix"], 0)
        self.assertIsNone(losses["client_nothing"])

    def test_constants_of_the_sizes_that_are_given(self) -> None:
        def by_latent(latents, labels):
            return {"fix": F.cross_entropy(latents, labels)}

        with self.assertRaisesRegex(Exception, "out of bounds"):
            fedanchor.save_loss(by_latent, self.folder / "latent.loss")
        self.assertTrue(fedanchor.save_loss(by_latent, self.folder / "latent.loss", latents=64).exists())
        with self.assertRaisesRegex(ValueError, "classes: expected at least 1, got 0"):
            fedanchor.save_loss(by_latent, self.folder / "latent.loss", classes=0)

    def test_what_a_run_would_refuse_is_refused(self) -> None:
        def underscore(logits, labels, _a):
            return {"fix": F.cross_entropy(logits, labels) * _a}

        def whole(logits, labels, round: int):
            return {"fix": F.cross_entropy(logits, labels) * round}

        def größe(logits, labels):
            return {"fix": F.cross_entropy(logits, labels)}

        def by_size(logits, labels):
            fix = {"fix": F.cross_entropy(logits, labels)}
            return fix if logits.size(0) == 3 else {**fix, "more": fix["fix"]}

        def remainder(logits, labels):
            return {"fix": F.cross_entropy(logits, labels) * (logits.size(0) % (logits.size(0) - 32))}

        for loss, reason in [
            (underscore, "_a cannot be the name of an argument"),
            (whole, "round is a tensor"),
            (größe, "expected a name of letters"),
            (by_size, "its terms depend on the number of samples"),
            (remainder, "the remainder of a whole number"),
        ]:
            with self.subTest(loss.__name__), self.assertRaisesRegex((TypeError, ValueError), reason):
                fedanchor.save_loss(loss, self.folder / "refused.loss")

    def test_a_batch_whose_loss_has_no_gradient_fails_its_client_alone(self) -> None:
        def small(logits, labels):
            if logits.size(0) < 3:
                return {"fix": torch.zeros([], device=logits.device)}
            return {"fix": F.cross_entropy(logits, labels)}

        loss = fedanchor.save_loss(small, self.folder / "small.loss")
        sample = {"data": {**BRIEF["data"], "name": "sample", "anchors": 20}, "model": {"name": "small"}}
        experiment = {**BRIEF, **sample, "client": {**BRIEF["client"], "batch": 2, "loss": {"file": str(loss)}}}
        with self.assertRaisesRegex(fedanchor.Error, "client failures: 1"):
            fedanchor.run(experiment, out=self.folder / "small")
        failed = fedanchor.Run(self.folder / "small").records[1]["failed"]
        self.assertIn("no trained weight changes the loss", failed[0]["reason"])

    def test_what_cannot_be_a_loss_is_named(self) -> None:
        def with_default(logits, mu=0.5):
            return {"fix": logits.mean() * mu}

        def of_nothing():
            return {"fix": torch.zeros([])}

        for function, reason in [
            (lambda logits: {"fix": logits.mean()}, "written with `def`"),
            (with_default, "mu has a default"),
            (of_nothing, "reads nothing of a batch"),
        ]:
            with self.subTest(reason), self.assertRaisesRegex(TypeError, reason):
                fedanchor.save_loss(function, self.folder / "refused.loss")

    def test_what_a_loss_may_not_do_is_refused_with_the_reason(self) -> None:
        def on_the_host(logits):
            return {"fix": logits.mean() * logits.max().item()}

        def of_a_changing_size(logits):
            return {"fix": logits[logits > 0].mean()}

        def at_random(logits):
            return {"fix": F.dropout(logits, 0.5).mean()}

        def many_numbers(logits):
            return {"fix": logits.mean(0)}

        for function, reason in [
            (on_the_host, "item"),
            (of_a_changing_size, "dynamic shape"),
            (at_random, "random"),
            (many_numbers, "expected one number"),
        ]:
            with self.subTest(reason), self.assertRaisesRegex((RuntimeError, ValueError), reason):
                fedanchor.save_loss(function, self.folder / "refused.loss")

        def of_no_weight(labels):
            return {"fix": labels.sum() * 1.0}

        with self.assertRaisesRegex(fedanchor.Error, "nothing that clients train changes this loss"):
            self.run_with(fedanchor.save_loss(of_no_weight, self.folder / "none.loss"), "none")


def _schema() -> dict:
    return json.loads((Path(__file__).parents[3] / "docs/experiment.schema.json").read_text())


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    unittest.main(verbosity=2)
