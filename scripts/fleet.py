"""A whole fleet on this machine: `python scripts/fleet.py target/release/fedanchor` with a Python that has flwr.

Starts Flower's SuperLink, three SuperNodes with a node of fedanchor each, and a coordinator, all on loopback, with digits of the
embedded sample. With `--nodes 4 --clients 100 --per-round 10` each of four nodes represents 25 clients. Afterwards the same
clients are simulated, and the two models are compared byte for byte. Everything is stopped at the end, also after Ctrl-C or an
error.

With `--other PROGRAM` the last node runs another program, for example that of another processor in an emulator. Its numbers
may differ in the last bits, so that the models are compared by their distance.
"""

import argparse
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import time
from typing import IO

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "flower"), str(ROOT / "flower" / "tests")]

from harness import Federation, taken_down  # noqa: E402

NODES = 3
NAMES = [f"client-{number}" for number in range(NODES)]
ROUNDS = 3
# The timeout of a step, in seconds.
LONGEST = 1200
# The largest distance of models that two kinds of processors have trained.
MOST_APART = 0.01
EXPERIMENT = """
preset = "best"
rounds = {rounds}
data = {{ name = "digits", path = "{path}", anchors = 0, clients = {clients} }}
partition.kind = "iid"
model.name = "small"
augment.flip = false
batch_norm.statistics = "static-server"
optimiser.lr = 0.1
client = {{ per_round = {per_round}, epochs = 1, batch = 32 }}
fleet.clients_per_node = {per_node}
"""


def pictures(program: str, folder: pathlib.Path, clients: int = NODES, per_round: int = NODES, per_node: int = 1) -> None:
    """Write `all` for the simulation, and the part `server` of it for the coordinator."""
    everything = folder / "all"
    subprocess.run([program, "-q", "data", "example", str(everything), "--clients", str(clients)], check=True, timeout=LONGEST)
    shutil.copytree(everything / "labelled", folder / "server" / "train")
    shutil.copytree(everything / "test", folder / "server" / "test")
    for name, data in (("fleet", "server"), ("simulation", "all")):
        text = EXPERIMENT.format(rounds=ROUNDS, path=folder / data, clients=clients, per_round=per_round, per_node=per_node)
        (folder / f"{name}.toml").write_text(text)


def wait_for_socket(path: pathlib.Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while not path.is_socket():
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"error: nothing listens on {path}")
        time.sleep(0.05)


def start_node(program: str, federation: Federation, name: str, socket: pathlib.Path | None = None) -> subprocess.Popen[bytes]:
    """A node of fedanchor with the pictures of this client, on the socket that its SuperNode knows, or on another."""
    socket = socket or federation.node_socket(name)
    command = [program, "node", "--data", str(federation.folder / "all" / "unlabelled" / name), "--name", name]
    command += ["--socket", str(socket), "--state", str(federation.folder / f"{name}-state")]
    node = federation.start(f"node-{name}", command)
    wait_for_socket(socket, node)
    return node


def start_nodes_of_many(program: str, federation: Federation, nodes: int, clients: int, other: str | None = None) -> list[str]:
    """Nodes that represent several clients each, the last one by another program; returns the nodes' names."""
    names = [f"node-{number}" for number in range(nodes)]
    for number, name in enumerate(names):
        socket, listed = federation.node_socket(name), federation.folder / f"{name}.txt"
        listed.write_text("".join(f"client-{client}\n" for client in range(number, clients, nodes)))
        words = shlex.split(other) if other and number == nodes - 1 else [program]
        command = [*words, "node", "--data", str(federation.folder / "all" / "unlabelled"), "--clients", str(listed)]
        command += ["--socket", str(socket), "--state", str(federation.folder / f"{name}-state")]
        wait_for_socket(socket, federation.start(f"fedanchor-{name}", command))
    return names


def start_flower(federation: Federation, names: list[str]) -> None:
    federation.start_superlink()
    for name in names:
        federation.start_supernode(name)


def start_coordinator(
    program: str, federation: Federation, out: pathlib.Path, *more: str, log: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """A coordinator that prints its progress, or writes it to a log."""
    command = [program, "coordinator", "--socket", str(federation.coordinator_socket), *more]
    where = ["--resume", str(out)] if out.exists() else [str(federation.folder / "fleet.toml"), "--out", str(out)]
    coordinator = subprocess.Popen([*command, *where], env=federation.environment("coordinator"), stderr=log)
    wait_for_socket(federation.coordinator_socket, coordinator)
    return coordinator


def simulate(program: str, federation: Federation, *more: str) -> bytes:
    """The model of the simulation of the same clients."""
    out = federation.folder / "simulated"
    command = [program, "-q", "run", str(federation.folder / "simulation.toml"), "--out", str(out), *more]
    subprocess.run(command, check=True, timeout=LONGEST)
    return (out / "model.safetensors").read_bytes()


def weights(model: bytes) -> list[float]:
    """All numbers of a model in a safetensors file."""
    start = 8 + int.from_bytes(model[:8], "little")
    tensors = json.loads(model[8:start])
    tensors.pop("__metadata__", None)
    if any(tensor["dtype"] != "F32" for tensor in tensors.values()):
        raise SystemExit("error: a model has numbers other than in single precision")
    return list(memoryview(model[start:]).cast("f"))


def distance(one: bytes, other: bytes) -> float:
    """The distance of two models, as a multiple of the norm of the second."""
    pairs = list(zip(weights(one), weights(other), strict=True))
    return (sum((a - b) ** 2 for a, b in pairs) / sum(b**2 for _, b in pairs)) ** 0.5


def run(program: str, federation: Federation, nodes: int, clients: int, per_round: int, other: str | None = None) -> None:
    folder = federation.folder
    pictures(program, folder, clients, per_round, -(-clients // nodes))
    if nodes == clients and not other:
        names = [f"client-{number}" for number in range(nodes)]
        for name in names:
            start_node(program, federation, name)
    else:
        names = start_nodes_of_many(program, federation, nodes, clients, other)
    print("starting Flower", flush=True)
    start_flower(federation, names)
    start = time.monotonic()
    coordinator = start_coordinator(program, federation, folder / "fleet")
    try:
        app = federation.run()
        status = coordinator.wait(LONGEST)
    except BaseException:
        coordinator.kill()
        coordinator.wait(60)
        raise
    seconds = time.monotonic() - start
    if status != 0:
        raise SystemExit(f"error: the coordinator ended with status {status}")
    if (ended := federation.wait_for_end(app)) != "finished:completed":
        raise SystemExit(f"error: the Flower run is {ended}, expected finished:completed")
    print(f"{ROUNDS} rounds over Flower in {seconds:.0f} s; now the simulation of the same clients", flush=True)
    simulated, trained = simulate(program, federation), (folder / "fleet" / "model.safetensors").read_bytes()
    if other:
        if (apart := distance(trained, simulated)) > MOST_APART:
            raise SystemExit(f"error: the fleet's model is {apart:.1e} of its norm from that of the simulation")
        print(f"the fleet's model is {apart:.1e} of its norm from that of the simulation of the same clients", flush=True)
        return
    if simulated != trained:
        raise SystemExit("error: the fleet's model differs from that of the simulation of the same clients")
    print("the fleet's model equals that of the simulation of the same clients, byte for byte", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A whole fleet on this machine, and the simulation of the same clients.")
    parser.add_argument("program", type=pathlib.Path)
    for name in ("nodes", "clients", "per-round"):
        parser.add_argument(f"--{name}", type=int, default=NODES)
    parser.add_argument("--other", metavar="PROGRAM", help="what the last node runs instead, with the words before it")
    options = parser.parse_args()
    program = str(options.program.resolve())
    with taken_down() as federation:
        run(program, federation, options.nodes, options.clients, options.per_round, options.other)


if __name__ == "__main__":
    main()
