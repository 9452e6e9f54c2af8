#!/usr/bin/env python3
"""Measure pfl 0.6.0 or plain PyTorch for benches/fedavg.py: seconds per round in pfl-research's CIFAR-10 setting.

    fedavg_torch.py pfl|eager DEVICE ROUNDS

1,000 users with 50 images each, 50 users per round, batch 10, one local epoch, SGD 0.1 without momentum, central SGD 1.0,
single precision; the two-layer CNN of that benchmark, without dropout as in this engine. Images are noise around one colour per
class and are on the device before the measurement, as in pfl's own benchmark. Prints one line of JSON.

`pfl` is pfl's own simulation (FederatedAveraging, SimulatedBackend, PyTorchModel, FederatedDataset) without its console and
CSV callbacks and without evaluation; `eager` resets one model in place for one user after the other. pfl imports privacy
accountants that this setting does not use; missing ones are replaced by stand-ins that raise an error when called.
"""
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

USERS, IMAGES, COHORT, BATCH, CLASSES, WARM_UP = 1000, 50, 50, 10, 10, 3


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)
        self.hidden, self.out = nn.Linear(64 * 14 * 14, 128), nn.Linear(128, CLASSES)

    def forward(self, images):  # height x width x channel, as in pfl's data sets
        x = F.relu(self.conv2(F.relu(self.conv1(images.permute(0, 3, 1, 2)))))
        return self.out(F.relu(self.hidden(F.max_pool2d(x, 2).flatten(1))))

    def loss(self, images, labels):
        self.train()
        return F.cross_entropy(self(images), labels.squeeze(1).long())

    def metrics(self, images, labels):  # called by pfl before the first round
        from pfl.metrics import Weighted

        with torch.no_grad():
            return {"loss": Weighted(self.loss(images, labels).item() * len(images), len(images))}


def data(device):
    """The images and labels of all users, as one tensor each."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(USERS * IMAGES) % CLASSES
    colours = torch.randn(CLASSES, 1, 1, 3, generator=generator)
    images = torch.randn(USERS * IMAGES, 32, 32, 3, generator=generator) + colours[labels]
    return images.to(device), labels.float().unsqueeze(1).to(device)


def settle(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def eager(device, rounds):
    images, labels = data(device)
    model = Cnn().to(device)
    weights = list(model.parameters())
    optimiser = torch.optim.SGD(weights, 0.1)
    seconds = []
    for number in range(WARM_UP + rounds):
        settle(device)
        start = time.perf_counter()
        with torch.no_grad():
            sent = [w.clone() for w in weights]
            mean = [torch.zeros_like(w) for w in weights]
        for user in torch.randperm(USERS)[:COHORT].tolist():
            with torch.no_grad():
                torch._foreach_copy_(weights, sent)
            for step in range(user * IMAGES, (user + 1) * IMAGES, BATCH):
                optimiser.zero_grad()
                model.loss(images[step : step + BATCH], labels[step : step + BATCH]).backward()
                optimiser.step()
            with torch.no_grad():
                torch._foreach_add_(mean, weights, alpha=1 / COHORT)
        with torch.no_grad():
            torch._foreach_copy_(weights, mean)
        settle(device)
        seconds.append(time.perf_counter() - start)
    return seconds[WARM_UP:], sum(w.numel() for w in weights)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules in which every name raises an error when called."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        def absent(name):
            def call(*_, **__):
                raise RuntimeError(f"{module.__name__}.{name} is not available: the package is not installed")

            if name.startswith("__"):
                raise AttributeError(name)
            return call

        module.__getattr__ = absent


def pfl(device, rounds):
    os.environ["PFL_PYTORCH_DEVICE"] = device
    site = os.environ.get("PFL_SITE")
    if site:
        sys.path.append(site)
    missing = [name for name in ("scipy", "dp_accounting", "prv_accountant") if importlib.util.find_spec(name) is None]
    sys.meta_path.append(StandIns(missing))

    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import FederatedDataset, get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Clock(TrainingProcessCallback):
        def __init__(self):
            self.seconds = []

        def on_train_begin(self, *, model):
            settle(device)
            self.last = time.perf_counter()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            settle(device)
            now = time.perf_counter()
            self.seconds.append(now - self.last)
            self.last = now
            return False, Metrics()

    images, labels = data(device)
    users = {u: (images[u * IMAGES : (u + 1) * IMAGES], labels[u * IMAGES : (u + 1) * IMAGES]) for u in range(USERS)}
    federated = FederatedDataset.from_slices(users, get_user_sampler("random", range(USERS)))
    net, clock = Cnn(), Clock()
    model = PyTorchModel(model=net, local_optimizer_create=torch.optim.SGD, central_optimizer=torch.optim.SGD(net.parameters(), 1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=WARM_UP + rounds, evaluation_frequency=1 << 30, train_cohort_size=COHORT, val_cohort_size=0
        ),
        backend=SimulatedBackend(training_data=federated, val_data=federated, postprocessors=[WeightByUser()]),
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=BATCH),
        model_eval_params=NNEvalHyperParams(local_batch_size=10000),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return clock.seconds[WARM_UP:], sum(w.numel() for w in net.parameters())


if __name__ == "__main__":
    who, device, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    seconds, parameters = {"pfl": pfl, "eager": eager}[who](device, rounds)
    print(json.dumps({"median": statistics.median(seconds), "parameters": parameters, "images": COHORT * IMAGES}))
