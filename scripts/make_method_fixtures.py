#!/usr/bin/env python3
"""Make the fixtures for testing SemiFL, FedMatch and (FL)^2 against PyTorch.

    make target/torchvision/ready
    target/torchvision/bin/python scripts/make_method_fixtures.py

Writes crates/core/tests/fixtures/methods.safetensors; the file in the repository was made with
PyTorch 2.11.0 on x86-64. Network, filling and precision are those of make_torch_fixtures.py: the
network `small` on 16x16 images with 3 channels, weights and inputs hashed from names, results
computed in double precision and stored in single. All training uses the batch statistics in batch
norm and does not update the running ones; every view is a separate pass.

A trained weight is stored as its change: `.../length/{entry}`, the Euclidean length, and
`.../change/{entry}`, the whole change or, if it has more than 256 numbers, those at the 256 places
hashed from `places/{entry}`. Classes and masks are stored as floating-point numbers. The entries:

- `semifl/labels/{class,score}`: argmax and largest softmax of filling 0, with its running
  statistics, on the images `semifl images`.
- `semifl/round{1,2}/{loss/{step},change,length}`: a client's two steps in each of two rounds, in
  which it receives fillings 0 and 1. The momentum is kept, the learning rate decays from 0.1 to
  0.05. Steps are numbered 0 to 3 over both rounds; changes are relative to the received weights.
  Views, labels and one lambda per sample are named as in `steps/` of the other fixture.
- `semifl/server/{change,length}`: the server's w, filling 0, after two updates towards the means of
  fillings 1 and 2 and then of 3 and 4: v <- v / 2 + (w - mean), w <- w - v. Changes are relative to
  the start. The anchor head is treated like any other weight.
- `fedmatch/client/{case}/...`: two steps of psi. Backbone and classifier are sigma, filling 0, plus
  psi, 0.1 times filling 1 (a product in single precision); the anchor head is not used.
  - `threshold`, `weights` (of consistency, agreement, L1, L2), `optimiser` (learning rate,
    momentum, weight decay) and `helpers` (two fillings, with their own running statistics)
  - `consistency/{step}`, `agreement/{step}`, `l1/{step}`, `l2/{step}`: the terms, without weights
  - `loss/{step}`: their weighted sum
  - `confident/{step}`, `label/{step}`: which samples are confident, and the vote on every sample
  - `change`, `length`: of psi
- `fedmatch/server/{case}/...`: two steps of sigma from the same start, psi fixed; `weights` (of the
  cross entropy), `optimiser`, `loss/{step}` (weighted), `change` and `length` of sigma. Images are
  `server view of step {step}`, labels `server of step {step}`.
- `fedmatch/votes/label`: the result of voting for 256 samples, with the classes `own vote` and
  `vote of helper {0 to 3}`.

- `fl2/{some,none}/...`: two steps of (FL)^2 from filling 0, on images and labels named as those of SemiFL's fix
  views, with `confident/{step}` as given, in `none` no sample; `radius`, `optimiser`; `fix/{step}` and
  `consistency/{step}`: the terms; `change`, `length`: of the weights, without the anchor head

FedMatch has two cases. `published` uses the published weights, with a lower threshold. There the L2
term dominates the other terms, and at the server the gradient dominates the weight decay, so that
the changes hardly test them. In `visible` the weights are chosen so that every term has an effect,
and the helpers sometimes outvote the client. Two helpers cannot tie without the client's own class;
the four of `votes` can.
"""

import argparse
import pathlib

import torch
from torch.nn import functional

from make_torch_fixtures import (
    BODIES, CLASSES, Network, cross_entropy, cross_entropy_each, filled, hashed, labels, mix_loss,
    noise, save,
)

FIXTURE = pathlib.Path(__file__).parent.parent / "crates/core/tests/fixtures/methods.safetensors"

THRESHOLD = 0.2  # of confidence
CLEAR = 1e-5  # decisions by a smaller margin could depend on rounding

# Weights of consistency, agreement, L1 and L2; learning rate, momentum and decay; helpers.
CLIENTS = {
    "published": ((0.01, 0.01, 1e-5, 10), (0.001, 0.9, 1e-4), (2, 3)),
    "visible": ((1, 1, 0.01, 0.05), (0.01, 0.9, 0.1), (7, 19)),
}
# Weight of the cross entropy; learning rate, momentum and decay.
SERVERS = {
    "published": (10, (0.01, 0.9, 1e-4)),
    "visible": (2, (0.01, 0.9, 0.1)),
}


class StaticNetwork(Network):
    """Running statistics are used in evaluation and never updated."""

    def norm(self, x, name):
        if not self.training:
            return super().norm(x, name)
        weight = self.weight(f"{name}.weight", x.shape[1])
        bias = self.weight(f"{name}.bias", x.shape[1])
        return functional.batch_norm(x, None, None, weight, bias, training=True, eps=1e-5)


def small(filling):
    net = StaticNetwork(BODIES["small"], filling=str(filling))
    net(noise("warm-up", 1, 3, 16, 16))  # creates all entries
    return net


def shapes():
    """Shapes of the weights, without running statistics."""
    return {name: tuple(value.shape) for name, value in small(0).weights.items()}


def copied(weights):
    return {name: value.detach().clone() for name, value in weights.items()}


def changes(case, now, start):
    for name, value in now.items():
        change = (value.detach() - start[name]).flatten()
        places = hashed(f"places/{name}", 256) % len(change)
        yield f"{case}/change/{name}", change[places] if len(change) > 256 else change
        yield f"{case}/length/{name}", change.norm().reshape(1)


def clear_classes(probabilities):
    """The most likely class of each sample, which must not depend on rounding."""
    best = probabilities.topk(2, dim=1)
    assert (best.values[:, 0] - best.values[:, 1]).min() > CLEAR, best.values
    return best.indices[:, 0].tolist()


# SemiFL.


def semifl_labels():
    with torch.no_grad():
        logits = small(0)(noise("semifl images", 32, 3, 16, 16))["logits"]
    probabilities = logits.softmax(dim=1)
    yield "semifl/labels/class", torch.tensor(clear_classes(probabilities))
    yield "semifl/labels/score", probabilities.max(dim=1).values


def semifl_loss(net, step):
    fix, mix = labels(f"fix of step {step}", 4), labels(f"mix of step {step}", 4)
    lam = ((noise(f"lambda of step {step}", 4) + 1) / 2).double()
    fix_logits = net(noise(f"fix view of step {step}", 4, 3, 16, 16))["logits"]
    mix_logits = net(noise(f"mix view of step {step}", 4, 3, 16, 16))["logits"]
    return cross_entropy(fix_logits, fix) + mix_loss(mix_logits, fix, mix, lam)


def semifl_client():
    net = small(0)
    net.training = True
    optimiser = torch.optim.SGD(
        net.weights.values(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    for index, rate in enumerate((0.1, 0.05)):
        case = f"semifl/round{index + 1}"
        received = copied(small(index).weights)
        with torch.no_grad():
            for name, value in net.weights.items():
                value.copy_(received[name])
        optimiser.param_groups[0]["lr"] = rate
        for step in (2 * index, 2 * index + 1):
            loss = semifl_loss(net, step)
            optimiser.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(net.weights.values(), 1.0)
            assert norm > 1.0, "the step must be clipped to test clipping"
            optimiser.step()
            yield f"{case}/loss/{step}", loss.reshape(1)
        yield from changes(case, net.weights, received)
    for name, value in net.statistics.items():
        assert torch.equal(value, filled("0", name, value.shape).double()), name


def semifl_server():
    """PyTorch's SGD, with the difference to the mean as the gradient."""
    weights = small(0).weights
    start = copied(weights)
    optimiser = torch.optim.SGD(weights.values(), lr=1.0, momentum=0.5)
    for clients in ((1, 2), (3, 4)):
        trained = [small(client).weights for client in clients]
        for name, value in weights.items():
            mean = sum(client[name].detach() for client in trained) / len(trained)
            value.grad = value.detach() - mean
        optimiser.step()
    yield from changes("semifl/server", weights, start)


# FedMatch.


def halves():
    """Sigma and psi, without the anchor head."""
    names = {name: shape for name, shape in shapes().items() if not name.startswith("anchor.")}
    sigma = {name: filled("0", name, shape).double() for name, shape in names.items()}
    psi = {name: (0.1 * filled("1", name, shape)).double() for name, shape in names.items()}
    return sigma, psi


def summed_logits(sigma, psi, images):
    net = StaticNetwork(BODIES["small"])
    net.training = True
    net.weights = {name: sigma[name] + psi[name] for name in sigma}
    return net(images)["logits"]


def voted(own, helpers):
    """The class with most votes; in a tie the client's own class, else the lowest."""
    votes = [0] * CLASSES
    for vote in (own, *helpers):
        votes[vote] += 1
    most = [c for c in range(CLASSES) if votes[c] == max(votes)]
    return own if own in most else most[0]


def divergence(log_p, log_q):
    """KL(p || q) for one sample."""
    return sum(p.exp() * (p - q) for p, q in zip(log_p, log_q))


def fedmatch_terms(sigma, psi, helpers, step):
    """The four terms without weights, the confident samples, and the labels of all samples."""
    weak = noise(f"weak view of step {step}", 8, 3, 16, 16)
    strong = noise(f"strong view of step {step}", 8, 3, 16, 16)
    log_q = functional.log_softmax(summed_logits(sigma, psi, weak), dim=1)
    with torch.no_grad():
        log_p = [functional.log_softmax(small(h)(weak)["logits"], dim=1) for h in helpers]
    own = clear_classes(log_q.detach().exp())
    votes = [clear_classes(log.exp()) for log in log_p]
    label = [voted(own[i], [vote[i] for vote in votes]) for i in range(8)]

    highest = log_q.detach().exp().max(dim=1).values
    assert (highest - THRESHOLD).abs().min() > CLEAR, highest
    confident = [i for i in range(8) if highest[i] >= THRESHOLD]
    assert 0 < len(confident) < 8, highest

    apart = [sum(divergence(p[i], log_q[i]) for i in confident) / len(confident) for p in log_p]
    wrong = cross_entropy_each(summed_logits(sigma, psi, strong), label)
    terms = {
        "consistency": sum(apart) / len(helpers),
        "agreement": sum(wrong[i] for i in confident) / len(confident),
        "l1": sum(value.abs().sum() for value in psi.values()),
        "l2": sum(((sigma[name] - psi[name]) ** 2).sum() for name in sigma),
    }
    mask = torch.tensor([float(i in confident) for i in range(8)])
    return terms, mask, torch.tensor(label)


def sgd(weights, numbers):
    rate, momentum, decay = numbers
    for value in weights.values():
        value.requires_grad_()
    return torch.optim.SGD(weights.values(), lr=rate, momentum=momentum, weight_decay=decay)


def fedmatch_client():
    for name, (weights, numbers, helpers) in CLIENTS.items():
        case = f"fedmatch/client/{name}"
        yield f"{case}/threshold", torch.tensor([THRESHOLD])
        yield f"{case}/weights", torch.tensor(weights)
        yield f"{case}/optimiser", torch.tensor(numbers)
        yield f"{case}/helpers", torch.tensor(helpers)
        sigma, psi = halves()
        start = copied(psi)
        optimiser = sgd(psi, numbers)
        for step in range(2):
            # If psi is nearly zero, its sign in the L1 term could depend on rounding.
            smallest = min(value.detach().abs().min() for value in psi.values())
            assert smallest > 1e-8, smallest
            terms, confident, label = fedmatch_terms(sigma, psi, helpers, step)
            loss = sum(weight * term for weight, term in zip(weights, terms.values()))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            for term, value in terms.items():
                yield f"{case}/{term}/{step}", value.reshape(1)
            yield f"{case}/loss/{step}", loss.reshape(1)
            yield f"{case}/confident/{step}", confident
            yield f"{case}/label/{step}", label
        yield from changes(case, psi, start)


def fedmatch_server_loss(sigma, psi, step):
    logits = summed_logits(sigma, psi, noise(f"server view of step {step}", 8, 3, 16, 16))
    return cross_entropy(logits, labels(f"server of step {step}", 8))


def fedmatch_server():
    for name, (weight, numbers) in SERVERS.items():
        case = f"fedmatch/server/{name}"
        yield f"{case}/weights", torch.tensor([weight])
        yield f"{case}/optimiser", torch.tensor(numbers)
        sigma, psi = halves()
        start = copied(sigma)
        optimiser = sgd(sigma, numbers)
        for step in range(2):
            loss = weight * fedmatch_server_loss(sigma, psi, step)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            yield f"{case}/loss/{step}", loss.reshape(1)
        yield from changes(case, sigma, start)


def fedmatch_votes():
    own = labels("own vote", 256).tolist()
    helpers = list(zip(*(labels(f"vote of helper {h}", 256).tolist() for h in range(4))))
    label = [voted(*sample) for sample in zip(own, helpers)]
    samples = list(zip(own, label, helpers))
    # All outcomes occur: most votes, a tie with the client's class, the lowest of a tie without it.
    assert any(to != mine and of.count(to) > 2 for mine, to, of in samples)
    assert any(to == mine and len({mine, *of}) == 5 for mine, to, of in samples)
    assert any(mine not in of and len(set(of)) == 2 and of.count(to) == 2
               for mine, to, of in samples)
    yield "fedmatch/votes/label", torch.tensor(label)


# (FL)^2.

FL2_RADIUS, FL2_OPTIMISER = 0.1, (0.05, 0.9, 5e-4)
FL2_CONFIDENT = {"some": ((1, 0, 1, 0), (0, 1, 1, 1)), "none": ((0, 0, 0, 0), (0, 0, 0, 0))}


def ascent(weights, gradients):
    """ASAM's step to where the loss is higher: sizes scale the weights, and biases are taken as they are."""
    sizes = {name: value.detach().abs() + 0.01 if name.endswith("weight") else 1.0 for name, value in weights.items()}
    norm = torch.stack([(sizes[name] * gradient).norm() for name, gradient in gradients.items()]).norm() + 1e-16
    return {name: FL2_RADIUS / norm * sizes[name] ** 2 * gradient for name, gradient in gradients.items()}


def fl2_client():
    for case, masks in FL2_CONFIDENT.items():
        net = small(0)
        net.training = True
        weights = {name: value for name, value in net.weights.items() if not name.startswith("anchor.")}
        start, optimiser = copied(weights), sgd(weights, FL2_OPTIMISER)
        place = f"fl2/{case}"
        yield f"{place}/radius", torch.tensor([FL2_RADIUS])
        yield f"{place}/optimiser", torch.tensor(FL2_OPTIMISER)
        for step, mask in enumerate(masks):
            images, mask = noise(f"fix view of step {step}", 4, 3, 16, 16), torch.tensor(mask).double()
            label = labels(f"fix of step {step}", 4)

            def gradients(loss):
                return dict(zip(weights, torch.autograd.grad(loss, list(weights.values()))))

            logits = net(images)["logits"]
            target = functional.log_softmax(logits.detach(), dim=1)
            each = torch.stack(list(cross_entropy_each(logits, label)))
            steps = ascent(weights, gradients((each * mask).sum() / mask.sum().clamp(min=1)))
            with torch.no_grad():
                for name, value in weights.items():
                    value += steps[name]
            moved = functional.log_softmax(net(images)["logits"], dim=1)
            consistency = ((target.exp() * (target - moved)).sum(dim=1) * mask).mean()
            of_consistency = gradients(consistency)
            with torch.no_grad():
                for name, value in weights.items():
                    value -= steps[name]
            fix = cross_entropy(net(images)["logits"], label)
            of_fix = gradients(fix)
            for name, value in weights.items():
                value.grad = of_fix[name] + of_consistency[name]
            optimiser.step()
            yield f"{place}/confident/{step}", mask
            yield f"{place}/fix/{step}", fix.reshape(1)
            yield f"{place}/consistency/{step}", consistency.reshape(1)
        assert (consistency > 1e-4) == (case == "some"), consistency
        yield from changes(place, weights, start)


PARTS = (
    semifl_labels, semifl_client, semifl_server, fedmatch_client, fedmatch_server, fedmatch_votes, fl2_client
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURE, help="file to write")
    out = parser.parse_args().out
    tensors = {}
    for part in PARTS:
        for name, value in part():
            assert name not in tensors and torch.isfinite(value).all(), name
            tensors[name] = value.detach().clone()
    save(out, tensors, {"torch": torch.__version__.split("+")[0]})
    for name, value in tensors.items():
        print(name, list(value.shape))
    print(f"{len(tensors)} tensors, {out.stat().st_size:,} bytes in {out}")


if __name__ == "__main__":
    main()
