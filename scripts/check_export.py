#!/usr/bin/env python3
"""Compare exported models with the program's outputs:  python scripts/check_export.py FOLDER [--torchvision]

`cargo run --locked -p fedanchor-export --example cases -- FOLDER` writes FOLDER. ONNX files are run with onnxruntime; with
--torchvision, model files are loaded into torchvision's ResNet-18 instead, as docs/pictures.md shows. `make test` and
`make test-slow` call both, each in a virtual environment with its Python packages.
"""
import argparse
import json
from pathlib import Path

import numpy

TOLERANCE = 1e-4
CLASSES = ["a cat", "größer", '"quoted"', "d", "e"]
OUTPUTS = ["logits", "probabilities", "latents", "scores"]


def check(condition, message):
    if not condition:
        raise SystemExit(f"error: {message}")


def read_safetensors(path):
    """The tensors of a file in single precision, by name."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    found = {}
    for name, about in header.items():
        begin, end = about["data_offsets"]
        check(about["dtype"] == "F32", f"{path}: {name} is {about['dtype']}")
        found[name] = numpy.frombuffer(data[start + begin : start + end], "<f4").reshape(about["shape"])
    return found


def softmax(logits):
    powers = numpy.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def expected(case):
    found = {name: numpy.load(case / f"{name}.npy") for name in ("logits", "latents", "scores")}
    return found | {"probabilities": softmax(found["logits"])}


def compare(case, found):
    """The largest difference of each output from the program's own."""
    own = expected(case)
    far = {name: float(abs(found[name] - own[name]).max()) for name in found}
    for name, distance in far.items():
        check(found[name].shape == own[name].shape, f"{case.name}: {name} has shape {found[name].shape}")
        check(own[name].std(0).max() > 10 * TOLERANCE, f"{case.name}: {name} is almost the same for all images")
        check(distance <= TOLERANCE, f"{case.name}: {name} is {distance:.1e} from the program's own")
    return far


def report(case, what, far):
    print(f"{case.name:18} {what:11}", "  ".join(f"{name} {distance:.1e}" for name, distance in far.items()), flush=True)


def check_onnx(case):
    import onnxruntime

    def session(name):
        return onnxruntime.InferenceSession(case / f"{name}.onnx", providers=["CPUExecutionProvider"])

    def outputs(session):
        return [output.name for output in session.get_outputs()]

    for form, name, images in (("normalised", "input", "input"), ("raw", "images", "images")):
        runtime = session(form)
        pixels = numpy.load(case / f"{images}.npy")
        about = runtime.get_inputs()[0]
        check((about.name, about.shape) == (name, ["N", *pixels.shape[1:]]), f"{case.name}: {about}")
        check(outputs(runtime) == OUTPUTS, f"{case.name}: outputs {outputs(runtime)}")
        properties = runtime.get_modelmeta().custom_metadata_map
        check(json.loads(properties["classes"]) == CLASSES, f"{case.name}: {properties}")
        check(properties["size"] == str(numpy.load(case / "images.npy").shape[1]), f"{case.name}: {properties}")
        check((properties["fit"], properties["version"]) == ("crop", "1.2.3"), f"{case.name}: {properties}")
        resized = (properties["filter"], properties["antialias"])
        check(resized == ("lanczos3", "true"), f"{case.name}: {properties}")
        normalisation = json.loads(properties["normalisation"])
        check(len(normalisation["mean"]) == len(normalisation["std"]), f"{case.name}: {properties}")
        found = dict(zip(OUTPUTS, runtime.run(OUTPUTS, {name: pixels})))
        report(case, form, compare(case, found))
        # Any number of images.
        one = runtime.run(["logits"], {name: pixels[:1]})[0]
        check(abs(one - found["logits"][:1]).max() <= TOLERANCE, f"{case.name}: one image alone differs")
    if case.name == "small":
        check(outputs(session("without-scores")) == OUTPUTS[:3], f"{case.name}: without-scores.onnx")
        check(outputs(session("without-latents")) == OUTPUTS[:2], f"{case.name}: without-latents.onnx")


def check_torchvision(case):
    """A strict load takes the tensors, and the logits are the program's own."""
    import torch
    import torchvision

    images = numpy.load(case / "input.npy")
    network = torchvision.models.resnet18(num_classes=len(CLASSES))
    if case.name == "resnet18":
        network.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
        network.maxpool = torch.nn.Identity()
    # Instead of safetensors.torch.load_file, so that the check needs no further package.
    tensors = {name: torch.from_numpy(numbers) for name, numbers in read_safetensors(case / "model.safetensors").items()}
    heads = ("anchor.", "predictor.", "class_means")
    check(all(any(name.startswith(head) for name in tensors) for head in heads), f"{case.name}: names {list(tensors)}")
    tensors = {name.replace("classifier.", "fc."): tensor for name, tensor in tensors.items() if not name.startswith(heads)}
    network.load_state_dict(tensors)
    with torch.inference_mode():
        logits = network.eval()(torch.from_numpy(images)).numpy()
    report(case, "torchvision", compare(case, {"logits": logits}))


def main():
    arguments = argparse.ArgumentParser(description="Compare exported models with what the program computes itself.")
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--torchvision", action="store_true", help="load the model files into torchvision's ResNet-18")
    options = arguments.parse_args()
    cases = sorted(case for case in options.folder.iterdir() if case.is_dir())
    check(len(cases) > 8, f"{options.folder}: {len(cases)} cases")
    if options.torchvision:
        cases = [case for case in cases if (case / "model.safetensors").exists()]
        check([case.name for case in cases] == ["resnet18", "resnet18-imagenet"], f"model files: {cases}")
    for case in cases:
        (check_torchvision if options.torchvision else check_onnx)(case)


if __name__ == "__main__":
    main()
