#!/usr/bin/env python3
"""What a fleet costs:  python benches/fleet.py PROGRAM MEASUREMENT ... [--repeats N], with a Python that has flwr

    echo        a round with 1, 10 and 100 clients that answer at once, on the coordinator's socket: seconds and peak memory
    intake      100 updates of ResNet-18 taken in, checked and folded, beside copies of the same bytes
    overhead    an exchange through Flower alone, and through the bridge and both sockets
    supernodes  a round with 1 to 8 SuperNodes whose nodes answer at once
    bytes       bytes per round and client

Everything runs on loopback in a temporary folder and is taken down at the end. The coordinator has 25 or 500 digits, no epochs on
them and no checkpoints, so that what is left of a round is the exchange.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "flower"), str(ROOT / "flower" / "tests")]

import numpy as np  # noqa: E402
from fedanchor_flower import PROTOCOL, coordinator, envelope, local_http  # noqa: E402
from fedanchor_flower.client_app import ask_node  # noqa: E402
from fleet_messages import Echo  # noqa: E402
from harness import FakeCoordinator, Federation, UnixHttpServer, taken_down  # noqa: E402

THREADS = 2  # of the transport, and of the copies
WRN_BYTES = 5_900_000  # a message with WRN-28-2
EXPERIMENT = """
preset = "paper"
rounds = {rounds}
data = {{ name = "digits", path = "{path}", anchors = 0, clients = {clients} }}
model.name = "{model}"
augment.flip = false
pretrain = {{ epochs = 1, contrastive = false }}
server.epochs = 0
client = {{ per_round = {clients}, epochs = 1, batch = 32 }}
method.send = "{send}"
checkpoint.write = false
"""


def digits(program: str, folder: pathlib.Path, per_class: int = 5) -> pathlib.Path:
    """The server's images: all that are labelled, and few to test on."""
    everything, server = folder / f"all-{per_class}", folder / f"server-{per_class}"
    command = [program, "-q", "data", "example", str(everything), "--clients", "1", "--labelled", str(per_class)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.copytree(everything / "labelled", server / "train")
    for name in (everything / "test").iterdir():
        (server / "test" / name.name).mkdir(parents=True)
        for image in sorted(name.iterdir())[:2]:
            shutil.copy(image, server / "test" / name.name)
    shutil.rmtree(everything)
    return server


class Run:
    """A coordinator, and when each of its rounds was over."""

    def __init__(
        self, program: str, folder: pathlib.Path, data: pathlib.Path, socket: pathlib.Path | None = None, **settings: object
    ) -> None:
        self.out = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=folder)) / "run"
        self.socket = socket or folder / "c.sock"
        experiment = self.out.with_name("experiment.toml")
        experiment.write_text(EXPERIMENT.format(path=data, **{"send": "class-means", **settings}))
        command = [program, "coordinator", str(experiment), "--socket", str(self.socket), "--out", str(self.out)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.ends: dict[int, float] = {}
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        while not self.socket.is_socket():
            if self.process.poll() is not None:
                raise SystemExit(f"error: the coordinator did not start:\n{''.join(self._lines)}")
            time.sleep(0.05)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)
            if line.startswith("round "):
                self.ends[int(line.split()[1].split("/")[0])] = time.monotonic()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def wait(self) -> None:
        status = self.process.wait()
        self._reader.join()
        if status != 0:
            raise SystemExit(f"error: the coordinator ended with status {status}:\n{''.join(self._lines)}")
        for record in self.lines("rounds.jsonl")[1:]:
            if record["rejected"] or record["failed"] or record.get("absent"):
                raise SystemExit(f"error: not every answer counted: {record}")

    def lines(self, name: str) -> list[dict]:
        return [json.loads(line) for line in (self.out / name).read_text().splitlines()]

    def exchanges(self) -> list[float]:
        """Seconds per round without the server's own work."""
        return [line["total"] - line["server"] - line["test"] - line["broadcast"] for line in self.lines("timings.jsonl")[1:]]

    def peak(self) -> int:
        """The coordinator's peak memory in bytes (VmHWM), as it records it after every round."""
        return self.lines("timings.jsonl")[-1]["peak_memory"]


class Transport:
    """Takes the coordinator's requests and puts replies, as the bridge does, from clients that answer at once."""

    def __init__(self, run: Run, clients: int) -> None:
        self.run, self.socket = run, str(run.socket)
        self.echoes = {str(number): Echo(f"client-{number}") for number in range(1, clients + 1)}

    def orders(self) -> Iterator[list[dict]]:
        """What is to be done, until the run is over."""
        question = {"protocol": PROTOCOL, "session": "bench", "nodes": list(self.echoes)}
        while True:
            answer = local_http.request(self.socket, "POST", "/v1/work", json.dumps(question).encode())
            work = json.loads(answer.body)
            if work["state"] == "done":
                return
            if work["requests"]:
                yield work["requests"]

    def answer(self, order: dict) -> bytes:
        body = local_http.request(self.socket, "GET", f"/v1/requests/{order['id']}").body
        return self.echoes[order["node"]].respond("POST", order["path"], body)[1]

    def put(self, order: dict, reply: bytes) -> None:
        answer = local_http.request(self.socket, "POST", f"/v1/replies/{order['id']}?status=200", reply)
        if answer.status != 204:
            raise SystemExit(f"error: a reply was refused: {answer.status} {answer.text()}")

    def exchange(self) -> None:
        """One client after the other on each of the threads."""
        with ThreadPoolExecutor(THREADS) as pool:
            for orders in self.orders():
                list(pool.map(lambda order: self.put(order, self.answer(order)), orders))
        self.run.wait()


def echo(program: str, folder: pathlib.Path, repeats: int) -> None:
    print("| model | clients | seconds per round | per client | coordinator's peak memory |\n| --- | --- | --- | --- | --- |")
    data = digits(program, folder)
    for model in ("wrn28x2", "resnet18"):
        for clients in (1, 10, 100):
            with Run(program, folder, data, rounds=repeats, clients=clients, model=model) as run:
                Transport(run, clients).exchange()
                seconds = statistics.median(run.exchanges())
                peak = f"{run.peak() / 2**20:.0f} MiB"
                print(f"| {model} | {clients} | {seconds:.2f} | {seconds / clients:.3f} | {peak} |", flush=True)


class Copies:
    """Copies of the same bytes, by as many threads: in memory; and from a socket to a file and back into memory."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / "copy.sock"
        self.ready, self.end = multiprocessing.Event(), multiprocessing.Event()
        self.process = multiprocessing.Process(target=self._receive, args=(folder,), daemon=True)
        self.process.start()
        self.ready.wait()

    def _receive(self, folder: pathlib.Path) -> None:
        def respond(method: str, target: str, body: bytes) -> tuple[int, bytes]:
            path = folder / f"copy-{target.strip('/')}"
            path.write_bytes(body)
            read = path.read_bytes()
            path.unlink()
            return (204, b"") if len(read) == len(body) else (500, b"")

        UnixHttpServer(self.path, respond)
        self.ready.set()
        self.end.wait()

    def over_socket(self, body: bytes, times: int) -> float:
        def one(number: int) -> None:
            assert local_http.request(str(self.path), "POST", f"/{number}", body).status == 204

        return timed(one, times)

    @staticmethod
    def in_memory(body: bytes, times: int) -> float:
        # Several buffers, so that no cache holds them.
        sources = [np.frombuffer(body, np.uint8).copy() for _ in range(4)]
        targets = [np.empty_like(sources[0]) for _ in range(4)]
        return timed(lambda number: np.copyto(targets[number % 4], sources[number % 4]), times)

    def close(self) -> None:
        self.end.set()
        self.process.join()


def timed(work: Callable[[int], object], times: int) -> float:
    with ThreadPoolExecutor(THREADS) as pool:
        begin = time.monotonic()
        list(pool.map(work, range(times)))
        return time.monotonic() - begin


def intake(program: str, folder: pathlib.Path, repeats: int, clients: int = 100) -> None:
    copies = Copies(folder)
    found: dict[str, list[float]] = {"updates": [], "memory": [], "way": []}
    with Run(program, folder, digits(program, folder), rounds=repeats, clients=clients, model="resnet18") as run:
        transport = Transport(run, clients)
        training: list[tuple[dict, bytes]] = []
        starts = []
        for orders in transport.orders():
            for order in orders:
                if order["path"] == "/v1/join":
                    transport.put(order, transport.answer(order))
                else:
                    training.append((order, transport.answer(order)))
            if len(training) < clients:
                continue
            size = len(training[0][1])
            found["memory"].append(Copies.in_memory(training[0][1], clients))
            found["way"].append(copies.over_socket(training[0][1], clients))
            starts.append(time.monotonic())
            timed(lambda number: transport.put(*training[number]), clients)
            training.clear()
        run.wait()
        for start, line in zip(starts, run.lines("timings.jsonl")[1:], strict=True):
            found["updates"].append(run.ends[line["round"]] - start - line["server"] - line["test"])
    copies.close()
    print(f"{clients} updates of {size:,} bytes, {THREADS} threads, medians of {repeats}, least and most in brackets")
    for name, what in (
        ("updates", "taken in, checked and folded"),
        ("memory", "copied from memory to memory"),
        ("way", "copied from a socket to a file and back into memory"),
    ):
        times = [updates / other for updates, other in zip(found["updates"], found[name], strict=True)]
        ratio = "" if name == "updates" else f"; ours takes {spread(times, 1)} times as long"
        print(f"{what}: {spread(found[name], 2)} s{ratio}", flush=True)


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def overhead(program: str, folder: pathlib.Path, repeats: int) -> None:
    with taken_down() as federation:
        fake = FakeCoordinator(federation.coordinator_socket)
        UnixHttpServer(federation.node_socket("n"), lambda method, target, body: (200, os.urandom(len(body))))
        federation.start_superlink()
        federation.start_supernode("n")
        federation.run()
        (node,) = fake.wait_for_nodes(1)
        fake.send(node, "/", b"x").wait()  # the SuperNode installs the app
        out = federation.folder / "seconds"

        def bare(exchanges: int) -> list[float]:
            config = f'bytes={WRN_BYTES} exchanges={exchanges} out="{out}"'
            command = ("run", str(ROOT / "benches" / "echo_app"), "local", "--run-config", config, "--format", "json")
            run = str(json.loads(federation.command_line(*command))["run-id"])
            if (status := federation.wait_for_end(run, 600)) != "finished:completed":
                raise SystemExit(f"error: the bare app ended as {status}:\n{federation.run_log(run)}")
            return [float(line) for line in out.read_text().splitlines()]

        def ours() -> float:
            time.sleep(random.uniform(0, 3))  # as the other app does
            outcome = fake.send(node, "/", os.urandom(WRN_BYTES), timeout=None).wait(300)
            assert outcome.status == 200 and len(outcome.body) == WRN_BYTES
            return outcome.seconds

        bare(1)
        plain, whole = [], []
        for _ in range(4):
            plain += bare(repeats)
            whole += [ours() for _ in range(repeats)]
        print(f"Flower alone: {spread(plain, 2)} s, mean {statistics.mean(plain):.2f}")
        print(f"with bridge and sockets: {spread(whole, 2)} s, mean {statistics.mean(whole):.2f}, of {len(whole)} exchanges each")
        difference = statistics.mean(whole) - statistics.mean(plain)
        error = (statistics.variance(whole) / len(whole) + statistics.variance(plain) / len(plain)) ** 0.5
        print(f"difference of the means: {difference:+.2f} s (standard error {error:.2f})")
        print("what the bridge and the sockets add to a message, alone:", legs(federation, 5 * repeats))
        fake.finish()


def legs(federation: Federation, repeats: int) -> str:
    """The parts of an exchange that Flower alone does not have."""
    fake = FakeCoordinator(federation.folder / "legs.sock")
    caller = coordinator.Coordinator(str(federation.folder / "legs.sock"), 30.0)
    times: dict[str, list[float]] = {"body from the coordinator": [], "to the node and back": [], "reply to the coordinator": []}
    for number in range(1, repeats + 1):
        fake.send("0", "/", os.urandom(WRN_BYTES), timeout=None)
        order = coordinator.Order(number, 0, "/", None)
        marks = [time.monotonic()]
        fetched = caller.body(order)
        marks.append(time.monotonic())
        assert fetched is not None
        reply = ask_node(str(federation.node_socket("n")), envelope.Request("/", None, fetched))
        marks.append(time.monotonic())
        caller.reply(order, reply.status, reply.body)
        marks.append(time.monotonic())
        for name, start, end in zip(times, marks, marks[1:], strict=False):
            times[name].append(end - start)
    total = sum(statistics.median(values) for values in times.values())
    return f"{total:.3f} s (" + ", ".join(f"{name} {statistics.median(values):.3f}" for name, values in times.items()) + ")"


def supernodes(program: str, folder: pathlib.Path, repeats: int) -> None:
    print("| SuperNodes | seconds per round | least | most |\n| --- | --- | --- | --- |")
    data = digits(program, folder)
    with taken_down() as federation:
        federation.start_superlink()
        there = 0
        for count in (1, 2, 4, 8):
            for number in range(there, count):
                UnixHttpServer(federation.node_socket(f"n{number}"), Echo(f"client-{number}").respond)
                federation.start_supernode(f"n{number}")
            there = count
            settings = {"rounds": repeats, "clients": count, "model": "wrn28x2"}
            with Run(program, folder, data, federation.coordinator_socket, **settings) as run:
                app = federation.run()
                run.wait()
                seconds = run.exchanges()
                federation.wait_for_end(app)
            print(f"| {count} | {statistics.median(seconds):.1f} | {min(seconds):.1f} | {max(seconds):.1f} |", flush=True)


def sizes(program: str, folder: pathlib.Path, repeats: int) -> None:
    print("| model | anchors | method.send | bytes down | bytes up |\n| --- | --- | --- | --- | --- |")
    for per_class in (5, 100):
        data = digits(program, folder, per_class)
        for model in ("wrn28x2", "resnet18"):
            for send in ("class-means", "latents"):
                with Run(program, folder, data, rounds=1, clients=1, model=model, send=send) as run:
                    Transport(run, 1).exchange()
                    record = run.lines("rounds.jsonl")[1]
                    down, up = record["bytes_down"], record["bytes_up"]
                    print(f"| {model} | {5 * per_class} | {send} | {down:,} | {up:,} |", flush=True)


MEASUREMENTS = {"echo": echo, "intake": intake, "overhead": overhead, "supernodes": supernodes, "bytes": sizes}


def main() -> None:
    parser = argparse.ArgumentParser(description="What a fleet costs.")
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("measurements", nargs="+", choices=MEASUREMENTS)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for name in options.measurements:
        print(f"\n{name}; load {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores\n", flush=True)
        with tempfile.TemporaryDirectory(prefix="fb-") as folder, contextlib.suppress(KeyboardInterrupt):
            MEASUREMENTS[name](str(options.program.resolve()), pathlib.Path(folder), options.repeats)


if __name__ == "__main__":
    main()
