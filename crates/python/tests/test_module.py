"""The package `fedanchor` over the extension module of a test build. Needs jsonschema, numpy, pandas
and pillow."""

import ast
import dataclasses
import doctest
import io
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
from PIL import Image

import fedanchor
from fedanchor import _native, _running

#: A run of seconds on the embedded digits.
SMALL = {
    "preset": "best",
    "rounds": 2,
    "compare": False,
    "model": {"name": "small"},
    "data": {"name": "sample", "anchors": 50, "clients": 10},
    "client": {"per_round": 2, "epochs": 1},
    "pretrain": {"epochs": 2},
}
RECORDS = ["rounds.jsonl", "confusion.csv", "partition.json", "model.safetensors", "config.toml"]


def program(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`python -m fedanchor`."""
    command = [sys.executable, "-m", "fedanchor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def load_tests(loader, tests, pattern):
    for module in (fedanchor, _running):
        tests.addTests(doctest.DocTestSuite(module))
    return tests


class WithRun(unittest.TestCase):
    """One run for all tests of a class."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.place = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.place.name)
        cls.seen = []
        cls.run_ = fedanchor.run(SMALL, out=cls.folder / "run", on_round=cls.seen.append)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.place.cleanup()


class Runs(WithRun):
    def test_it_has_the_same_bytes_as_the_programs(self) -> None:
        settings = [f"--set={setting}" for setting in _settings_of(SMALL)]
        experiment = self.folder / "empty.toml"
        experiment.write_text("")
        done = program("run", experiment, *settings, "--out", self.folder / "of-program")
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in RECORDS:
            ours, its = [(self.folder / run / name).read_bytes() for run in ("run", "of-program")]
            self.assertEqual(ours, its, name)

    def test_what_is_read_is_what_was_recorded(self) -> None:
        self.assertEqual([record["round"] for record in self.seen], [0, 1, 2])
        run = self.run_
        self.assertEqual(run.records, self.seen)
        frame = run.rounds
        self.assertIsInstance(frame, pd.DataFrame)
        self.assertEqual(list(frame["round"]), [0, 1, 2])
        self.assertEqual(frame["anchor_head.all"][1], self.seen[1]["anchor_head"]["all"])
        self.assertEqual(run.summary["final_accuracy"], frame["test_accuracy"].iloc[-1])
        self.assertEqual(run.config["client"]["per_round"], 2)
        self.assertEqual(len(run.classes), 10)
        images = sum(map(sum, run.confusion))
        right = sum(run.confusion[at][at] for at in range(10))
        self.assertAlmostEqual(100 * right / images, run.summary["final_accuracy"])
        self.assertEqual((run.is_finished, run.problems, run.latents), (True, [], {}))
        self.assertEqual(run.verify()["problems"], [])
        self.assertTrue(run.figure("accuracy").svg.startswith("<svg"))
        with self.assertRaisesRegex(fedanchor.Error, "expected one of .*accuracy"):
            run.figure("nothing")

    def test_many_runs_are_one_table(self) -> None:
        frame = fedanchor.runs(self.folder / "run")
        self.assertEqual(frame["final_accuracy"][0], self.run_.summary["final_accuracy"])
        self.assertEqual(frame["client.per_round"][0], 2)
        self.assertEqual(fedanchor.table(self.folder / "run")["final.mean"][0], frame["final_accuracy"][0])
        other = fedanchor.run(SMALL, set={"seed": 1, "client.epochs": 2}, out=self.folder / "other")
        both = fedanchor.compare(self.run_.path, other.path)
        self.assertIn("client.epochs", json.dumps(both))
        with self.assertRaisesRegex(fedanchor.Error, "two different folders"):
            fedanchor.compare(self.run_.path, self.run_.path)
        page = fedanchor.report(self.folder / "run", self.folder / "report")
        self.assertIn("fedanchor", page.read_text())

    def test_an_exception_ends_a_run_that_goes_on_later(self) -> None:
        def fail(record: dict) -> None:
            if record["round"] == 1:
                raise KeyboardInterrupt

        out = self.folder / "stopped"
        with self.assertRaises(KeyboardInterrupt):
            fedanchor.run(SMALL, out=out, on_round=fail)
        self.assertEqual(fedanchor.Run(out).records[-1]["round"], 1)
        run = fedanchor.run(SMALL, out=out, resume=True)
        self.assertEqual(run.records, self.run_.records)
        self.assertEqual((out / "rounds.jsonl").read_bytes(), (self.folder / "run/rounds.jsonl").read_bytes())

    def test_a_run_in_progress_is_read_as_far_as_it_is(self) -> None:
        out, seen = self.folder / "followed", []

        def follow(record: dict) -> None:
            # Rounds are written while the next ones are computed.
            try:
                run = fedanchor.Run(out)
                rounds, unfinished = len(run.rounds), (run.summary, run.is_finished, run.confusion, run.problems)
            except fedanchor.Error as error:
                self.assertIn("no round was recorded", str(error))
                rounds, unfinished = 0, None
            seen.append((record["round"], rounds, unfinished))

        fedanchor.run(SMALL, out=out, on_round=follow)
        self.assertEqual(len(seen), 3)
        for at, rounds, unfinished in seen:
            self.assertIn(rounds, (at, at + 1))
            self.assertEqual(unfinished, (None, False, None, []) if rounds else None)
        with self.assertRaisesRegex(fedanchor.Error, "already|resume"):
            fedanchor.run(SMALL, out=out)

    def test_seeds_sweeps_and_dataclasses(self) -> None:
        @dataclasses.dataclass
        class Client:
            per_round: int = 2
            epochs: int = 1

        @dataclasses.dataclass
        class Mine:
            client: Client
            rounds: int = 1
            preset: str | None = None

        short = {**SMALL, "client": {}}
        one, two = fedanchor.run(short, set={"rounds": 1, "client.per_round": 1}, seeds=[3, 4], out=self.folder / "seeds")
        self.assertEqual((one.config["seed"], two.config["seed"]), (3, 4))
        self.assertEqual(fedanchor.resolve(Mine(Client()))["client"]["per_round"], 2)
        tried = {"one": {**SMALL, "rounds": 1}, "two": {**SMALL, "rounds": 1, "client": {"per_round": 1}}}
        first = fedanchor.sweep(tried, self.folder / "sweep", seeds=[0])
        times = [os.stat(run.path / "summary.json").st_mtime_ns for run in first]
        again = fedanchor.sweep(tried, self.folder / "sweep", seeds=iter([0]))
        self.assertEqual(times, [os.stat(run.path / "summary.json").st_mtime_ns for run in again])

    def test_what_was_stopped_goes_on_and_what_is_finished_is_compared(self) -> None:
        def fail(record: dict) -> None:
            raise KeyboardInterrupt

        out, short = self.folder / "some-seeds", {**SMALL, "rounds": 1}
        with self.assertRaises(KeyboardInterrupt):
            fedanchor.run(short, seeds=[5, 6], out=out, on_round=fail)
        runs = fedanchor.run(short, seeds=[5, 6], out=out, resume=True)
        self.assertEqual([run.summary["rounds"] for run in runs], [1, 1])
        with self.assertRaisesRegex(fedanchor.Error, "there is no run in"):
            fedanchor.run(short, out=self.folder / "not-begun", resume=True)
        # Advice names arguments of Python, not options of the program.
        one, longer = out / "seed5", {**short, "seed": 5, "rounds": 2}
        with self.assertRaisesRegex(fedanchor.Error, "resume it with `resume=True`, or use another folder with `out`"):
            fedanchor.run(longer, out=one)
        other = {**longer, "client": {**longer["client"], "epochs": 2}}
        with self.assertRaisesRegex(fedanchor.Error, '`resume="force"` resumes it anyway'):
            fedanchor.run(other, out=one, resume=True)
        self.assertEqual(fedanchor.run(other, out=one, resume="force").summary["rounds"], 2)
        with self.assertRaisesRegex(ValueError, 'resume: expected True, False or "force"'):
            fedanchor.run(other, out=one, resume="yes")
        fedanchor.sweep({"a": short}, self.folder / "changed")
        with self.assertRaisesRegex(fedanchor.Error, "^client.epochs: .* a finished run with 1, not 2") as raised:
            fedanchor.sweep({"a": short}, self.folder / "changed", set={"client.epochs": 2})
        self.assertEqual(raised.exception.key, "client.epochs")

    def test_a_signal_ends_a_run_and_a_thread_does_not_outlive_libtorch(self) -> None:
        long = {**SMALL, "rounds": 500}
        code = (
            "import fedanchor, json, os, signal, sys, threading, time\n"
            "long = json.loads(sys.argv[1])\n"
            # A shell starts what it runs in the background with the signal ignored.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "threading.Timer(6, os.kill, [os.getpid(), signal.SIGINT]).start()\n"
            "try:\n    fedanchor.run(long, out=sys.argv[2])\n"
            "except KeyboardInterrupt:\n    print(len(fedanchor.Run(sys.argv[2]).rounds))\n"
            "threading.Thread(target=fedanchor.run, args=[long], kwargs={'out': sys.argv[3]}, daemon=True).start()\n"
            "time.sleep(2)\n"
            "if os.fork() == 0:\n"
            "    try:\n        fedanchor.run(long, out=sys.argv[4])\n"
            "    except fedanchor.Error as error:\n        print(error, flush=True)\n"
            "    os._exit(0)\n"
            "os.wait()\n"
        )
        places = [str(self.folder / f"signal-{at}") for at in range(3)]
        command = [sys.executable, "-c", code, json.dumps(long), *places]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rounds, forked = done.stdout.splitlines()
        self.assertLess(int(rounds), 500)
        self.assertIn("forked", forked)

    def test_a_loss_in_pytorch_is_a_file(self) -> None:
        file = Path(__file__).parents[3] / "examples/python/fedprox.loss"
        loss = {"client.loss.file": str(file), "client.loss.arguments.mu": 0.5, "method.name": "supervised", "rounds": 1}
        run = fedanchor.run(SMALL, set=loss, out=self.folder / "loss")
        self.assertGreater(run.rounds["losses.client_proximal"][1], 0)
        with self.assertRaisesRegex(fedanchor.Error, "the loss has an argument `mu`: set client.loss.arguments.mu") as raised:
            fedanchor.run({**SMALL, "client": {"loss": {"file": str(file)}}}, out=self.folder / "no-mu")
        self.assertEqual(raised.exception.key, "client.loss.arguments")
        with self.assertRaisesRegex(fedanchor.Error, "client.loss.arguments.mu: expected a finite number, got nan"):
            fedanchor.run(SMALL, set={**loss, "client.loss.arguments.mu": float("nan")}, out=self.folder / "nan")
        # It is found again from everywhere, and known by its content.
        self.assertEqual(run.config["client"]["loss"]["file"], str(file))
        plain, copy = {key: loss[key] for key in ("method.name", "rounds")}, self.folder / "copy.loss"
        copy.write_bytes(file.read_bytes())
        [first] = fedanchor.sweep({"a": SMALL}, self.folder / "losses", set=loss)
        [again] = fedanchor.sweep({"a": SMALL}, self.folder / "losses", set={**loss, "client.loss.file": str(copy)})
        self.assertEqual(first.path, again.path)
        with self.assertRaisesRegex(fedanchor.Error, "client.loss: .* has a finished run with .*, not no such setting"):
            fedanchor.sweep({"a": SMALL}, self.folder / "losses", set=plain)
        copy.write_bytes((file.parent / "fix_mix.loss").read_bytes())
        with self.assertRaisesRegex(fedanchor.Error, "client.loss.hash: .* has a finished run with"):
            fedanchor.sweep({"a": SMALL}, self.folder / "losses", set={**loss, "client.loss.file": str(copy)})

    def test_a_damaged_run_is_an_error_that_names_the_file(self) -> None:
        out = self.folder / "damaged"
        subprocess.run(["cp", "-r", self.folder / "run", out], check=True)
        text = (out / "rounds.jsonl").read_text()
        (out / "rounds.jsonl").write_text(text.replace('"round":1', '"round":7', 1))
        self.assertTrue(any("rounds.jsonl" in problem for problem in fedanchor.Run(out).problems))
        self.assertTrue(fedanchor.Run(out).verify()["problems"])
        listed = fedanchor.runs([out, self.run_])
        self.assertEqual(sorted(listed["done"]), [0, 2])
        with self.assertWarnsRegex(UserWarning, "not in the table: .*damaged"):
            self.assertEqual(len(fedanchor.table([out, self.run_])), 1)
        self.assertTrue(listed["problem"].dropna().str.contains("rounds.jsonl").all())
        (out / "config.toml").unlink()
        with self.assertRaisesRegex(fedanchor.Error, "contains no run"):
            fedanchor.Run(out).records
        with self.assertRaises(fedanchor.Error):
            fedanchor.Run(self.folder / "nowhere").summary

    def test_nothing_is_printed(self) -> None:
        code = (
            "import fedanchor, json, sys;"
            f"fedanchor.run(json.loads(sys.argv[1]), out=sys.argv[2], set=['rounds=1'])"
        )
        command = [sys.executable, "-c", code, json.dumps(SMALL), str(self.folder / "silent")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        self.assertEqual((done.stdout, done.stderr), ("", ""))

    def test_predictions_are_the_programs(self) -> None:
        model = fedanchor.Model.load(self.run_)
        self.assertEqual(model.classes, self.run_.classes)
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (3, 28, 28), dtype=np.uint8)
        paths = []
        for at, image in enumerate(pixels):
            paths.append(self.folder / f"{at}.png")
            Image.fromarray(image).save(paths[-1])
        predicted = model.predict(pixels)
        self.assertEqual(predicted, model.predict(paths))
        self.assertEqual(predicted, model.predict([Image.open(path) for path in paths]))
        # Alone, sums are made in another order.
        [alone] = model.predict([pixels[0]])
        self.assertEqual((alone.label, alone.nearest), (predicted[0].label, predicted[0].nearest))
        self.assertAlmostEqual(alone.confidence, predicted[0].confidence, places=5)
        done = program("predict", self.run_.path, *paths, "--json")
        for line, one in zip(map(json.loads, done.stdout.splitlines()), predicted, strict=True):
            self.assertEqual((line["class"], line["nearest"]), (one.label, one.nearest))
            self.assertAlmostEqual(line["confidence"], one.confidence, places=5)
        self.assertEqual(model.scores(pixels).shape, (3, 10))
        np.testing.assert_allclose(np.linalg.norm(model.latents(pixels), axis=1), 1, rtol=1e-5)
        np.testing.assert_allclose([sum(one.probabilities.values()) for one in predicted], 1, rtol=1e-5)
        colour = rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)
        self.assertEqual(len(model.predict(colour)), 1)
        self.assertEqual(model.predict(colour), model.predict([colour]))
        for name, picture in {
            "alpha": Image.fromarray(rng.integers(0, 256, (40, 30, 4), dtype=np.uint8)),
            "deep": Image.fromarray(rng.integers(0, 65536, (30, 30), dtype=np.uint16)),
            "palette": Image.fromarray(colour).quantize(16),
            "turned": Image.fromarray(colour),
        }.items():
            path = self.folder / f"{name}.png"
            exif = Image.Exif()
            exif[0x0112] = 6
            picture.save(path, exif=exif if name == "turned" else None)
            with self.subTest(name):
                self.assertEqual(model.predict(path), model.predict(Image.open(path)))
        for wrong in [pixels.astype("f4"), pixels[None, None], object(), None, b"a.png", {"a.png": 1}, [None]]:
            with self.subTest(wrong), self.assertRaises(fedanchor.Error):
                model.predict(wrong)
        self._edited(model.description, lambda about: about.update(side=10**12))
        self._edited(model.description, lambda about: about["model"].update(norm="group", groups=0))
        self._edited(model.description, lambda about: about["normalisation"].update(std=[0.0]))
        self._edited(model.description, lambda about: about.pop("shape_of_another_version", about.pop("fit")))
        with self.assertRaisesRegex(fedanchor.Error, "no-such.png"):
            model.predict("no-such.png")
        (self.folder / "model.safetensors").write_bytes(b"no model")
        for path in ["nowhere", self.folder / "model.safetensors"]:
            with self.assertRaises(fedanchor.Error):
                fedanchor.Model.load(path)


    def _edited(self, description: dict, edit) -> None:
        """A model file with another description is refused."""
        content = (self.run_.path / "model.safetensors").read_bytes()
        length = int.from_bytes(content[:8], "little")
        head = json.loads(content[8 : 8 + length])
        [key] = [key for key, value in head["__metadata__"].items() if value.startswith("{")]
        about = json.loads(head["__metadata__"][key])
        edit(about)
        head["__metadata__"][key] = json.dumps(about)
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        path = self.folder / "edited.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
        with self.assertRaises(fedanchor.Error):
            fedanchor.Model.load(path)


class Arrays(unittest.TestCase):
    """Data sets in memory: stripes, horizontal or vertical."""

    def images(self, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        labels = np.arange(count) % 2
        stripes = np.where(np.arange(16) % 4 < 2, 200, 0)[None, :, None]
        images = np.where(labels[:, None, None] == 0, stripes, stripes.transpose(0, 2, 1))
        return (images + rng.integers(0, 50, (count, 16, 16))).astype(np.uint8), labels

    def test_clients_have_the_images_that_they_are_given(self) -> None:
        images, _ = self.images(60, 1)
        clients = fedanchor.Clients(images, {"north": range(20), "south": range(20, 60)})
        data = fedanchor.Data(self.images(20, 2), self.images(40, 3), ["-", "|"], clients=clients, flip=False)
        experiment = {**SMALL, "data": {}, "client": {"epochs": 1}}
        with tempfile.TemporaryDirectory() as folder:
            run = fedanchor.run(experiment, data=data, out=f"{folder}/run")
            self.assertEqual(run.classes, ["-", "|"])
            self.assertEqual(sorted(run.records[1]["client_names"]), ["north", "south"])
            self.assertEqual(run.records[1]["seen"], 60)
            one = {**experiment, "client": {"epochs": 1, "per_round": 1}, "rounds": 1}
            self.assertEqual(len(fedanchor.run(one, data=data, out=f"{folder}/one").records[1]["clients"]), 1)
            half = fedanchor.Clients(list(images), {"north": np.arange(60) < 20, "south": np.arange(60) >= 20})
            self.assertEqual(
                fedanchor.Data(self.images(20, 2), self.images(40, 3), 2, clients=half)._arrays.clients,
                data._arrays.clients,
            )
            again = fedanchor.run(experiment, data=data, out=f"{folder}/again")
            self.assertEqual(run.records, again.records)
            self.assertEqual(fedanchor.Model.load(run).classes, ["-", "|"])
            with self.assertRaisesRegex(fedanchor.Error, "memory of a Python program"):
                fedanchor.run(experiment, set=["data.name=arrays"], out=f"{folder}/none")

    def test_a_data_set_of_pairs_is_split_like_a_published_one(self) -> None:
        images, labels = self.images(100, 4)
        pairs = [(image, int(label)) for image, label in zip(images, labels)]
        data = fedanchor.Data(pairs, self.images(20, 5), 2)
        settings = {"data.anchors": 10, "data.clients": 5, "rounds": 1}
        with tempfile.TemporaryDirectory() as folder:
            run = fedanchor.run({**SMALL, "data": {}}, data=data, set=settings, out=f"{folder}/run")
            self.assertEqual(run.summary["anchors"], 10)
            self.assertEqual(len(json.loads((run.path / "partition.json").read_text())["clients"]), 5)

    def test_what_does_not_fit_is_named(self) -> None:
        good, (images, labels) = self.images(20, 6), self.images(20, 7)
        for wrong, problem in [
            ((images.astype("f4"), labels), r"train: expected 8-bit pixels .*float32"),
            ((images[:, :8], labels), r"train: expected the shape"),
            ((images[:, None], labels), r"move the channels to the end"),
            ((images, labels[:5]), r"train: expected 20 whole numbers as labels"),
            ((images, labels + 1), r"expected labels from 0 to 1, got 1 to 2"),
            ((images, labels / 2), r"expected 20 whole numbers"),
            ((images[:0], labels[:0]), r"train: there are no images"),
            (images, r"train: expected \(images, labels\)"),
            ((images[:, :8, :8], labels), r"one size"),
            ((images, None), r"train: expected labels"),
            ([(images[0], 0), (images[1][:8, :8], 1)], r"train: expected images of one size"),
        ]:
            with self.subTest(problem), self.assertRaisesRegex(fedanchor.Error, problem):
                fedanchor.Data(wrong, good, 2)
        for classes in (10**9, 1, "ab", 3.5, ["a", "a"]):
            with self.subTest(classes), self.assertRaisesRegex(fedanchor.Error, "^classes: expected"):
                fedanchor.Data(good, good, classes)
        for assignment, problem in [
            ({"a": [99]}, "a: expected numbers from 0 to 19, got 99"),
            ({"a": [0.5]}, "a: expected whole numbers of images, or 20 times True or False, got float64"),
            ({"a": np.ones(3, bool)}, "a: expected whole numbers"),
            ({"a": "012"}, "a: expected numbers of images"),
            ({"a": [1, 1]}, "a: an image is named twice"),
            ({1: [0], "1": [1]}, "two clients have the same name"),
            ([1, 2], "clients: 0: expected numbers of images"),
            (None, "clients: expected the numbers"),
            ({"a": []}, "a: expected at least one image"),
            ({}, "at least one client"),
        ]:
            with self.subTest(problem), self.assertRaisesRegex(fedanchor.Error, problem):
                fedanchor.Data(good, good, 2, clients=fedanchor.Clients(images, assignment))


class Settings(unittest.TestCase):
    def test_errors_name_their_key(self) -> None:
        for experiment, settings, key in [
            ({"client": {"batch": "x"}}, None, "client.batch"),
            ({}, {"client.batsh": 3}, "client.batsh"),
            ({"rounds": -1}, None, "rounds"),
            ({"method": {"name": "nothing"}}, None, "method.name"),
        ]:
            with self.subTest(key), self.assertRaises(fedanchor.Error) as raised:
                fedanchor.resolve(experiment, set=settings)
            self.assertEqual(raised.exception.key, key)
            self.assertIn(key, str(raised.exception))
        with self.assertRaises(fedanchor.Error) as raised:
            fedanchor.run("no-such-file.toml")
        self.assertIsNone(raised.exception.key)
        for experiment, settings, key in [
            ({"data": {"path": object()}}, None, "data.path"),
            ({"optimiser": {"lr": float("nan")}}, None, "optimiser.lr"),
            ({}, {"data.path": None}, "data.path"),
            ({}, {"client": {"epochs": None}}, "client.epochs"),
        ]:
            with self.subTest(key), self.assertRaisesRegex(fedanchor.Error, f"^{key}: ") as raised:
                fedanchor.resolve(experiment, set=settings)
            self.assertEqual(raised.exception.key, key)
        resolved = fedanchor.resolve({"rounds": np.int64(3)}, set={"client": {"epochs": np.int32(2)}})
        self.assertEqual((resolved["rounds"], resolved["client"]["epochs"]), (3, 2))
        with self.assertRaises(TypeError):
            fedanchor.resolve({}, set="rounds=1")
        with self.assertRaisesRegex(fedanchor.Error, "cuda"):
            fedanchor.run(SMALL, device="cuda:0", out="never")

    def test_the_schema_of_experiment_files_says_what_the_program_does(self) -> None:
        root = Path(__file__).parents[3]
        schema = json.loads((root / "docs/experiment.schema.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        methods = [one["const"] for one in schema["$defs"]["MethodConfig"]["properties"]["name"]["oneOf"]]
        self.assertIn("fedanchor", methods)
        good = [tomllib.loads((root / "experiments/quick.toml").read_text())]
        for preset in schema["properties"]["preset"]["enum"]:
            for method in methods:
                resolved = fedanchor.resolve({"preset": preset, "method": {"name": method}})
                good.append(_without_none(resolved))
        good += [
            {"method": {"threshold": "softmatch"}},
            {"method": {"threshold": {"from": 0.5}}},
            {"partition": {"kind": "iid"}},
            {},
        ]
        for experiment in good:
            self.assertEqual([error.message for error in validator.iter_errors(experiment)], [])
            fedanchor.resolve(experiment)
        for experiment in [
            {"rounds": "x"},
            {"client": {"batsh": 1}},
            {"method": {"name": "nothing"}},
            {"method": {"name": "semifl", "score": "cosine"}},
            {"method": {"threshold": "x"}},
            {"method": {"threshold": {"rule": "quantile", "width": 1}}},
            {"partition": {"kind": "iid", "alpha": 1}},
            {"preset": "x"},
        ]:
            with self.subTest(experiment), self.assertRaises(fedanchor.Error):
                self.assertTrue(list(validator.iter_errors(experiment)))
                fedanchor.resolve(experiment)

    def test_values_are_written_as_toml(self) -> None:
        resolved = fedanchor.resolve(
            {},
            set={
                "method.threshold": {"rule": "quantile", "from": 0.25},
                "data.path": Path('a "b" ü'),
                "augment.flip": True,
            },
        )
        self.assertEqual(resolved["data"]["path"], 'a "b" ü')
        self.assertEqual(resolved["method"]["threshold"]["from"], 0.25)
        self.assertIs(resolved["augment"]["flip"], True)

    def test_the_program_is_there(self) -> None:
        self.assertEqual(program("--version").stdout.split()[1], fedanchor.__version__)
        wrong = program("run", "nothing.toml")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("nothing.toml", wrong.stderr)

    def test_the_stub_names_what_the_module_has(self) -> None:
        stub = Path(_native.__file__).with_name("_native.pyi").read_text()
        named = {
            node.target.id if isinstance(node, ast.AnnAssign) else node.name
            for node in ast.parse(stub).body
            if isinstance(node, (ast.AnnAssign, ast.ClassDef, ast.FunctionDef))
        }
        named = {name for name in named if not name.startswith("_")}
        self.assertEqual(named, {name for name in dir(_native) if not name.startswith("_")})


def _without_none(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {key: _without_none(inner) for key, inner in value.items() if inner is not None}


def _settings_of(values: dict, prefix: str = "") -> list[str]:
    settings = []
    for key, value in values.items():
        if isinstance(value, dict):
            settings += _settings_of(value, f"{prefix}{key}.")
        else:
            settings.append(f"{prefix}{key}={json.dumps(value)}")
    return settings


if __name__ == "__main__":
    unittest.main(verbosity=2, buffer=isinstance(sys.stdout, io.StringIO))
