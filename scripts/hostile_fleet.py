"""A fleet with a third of its nodes hostile, compared with the same fleet without them: `python scripts/hostile_fleet.py target/release/fedanchor`.

The experiment of `fleet.py`, over Flower on this machine. A hostile node is an honest one behind a proxy that changes its updates:

    sign     five times the change, in the other direction
    noise    a random change of five times the norm
    scale    a thousand times the change
    nan      NaN

Prints a table with the test accuracy after the last round, and the number of rejected and clipped updates.
"""

import argparse
import json
import pathlib
import sys
import threading
from collections.abc import Callable

import fleet
import numpy as np
from fedanchor_flower import local_http
from fleet_messages import decode, encode, join_parts, split_parts
from harness import Federation, UnixHttpServer, taken_down
from keep_records import keep

Change = Callable[[np.ndarray, np.ndarray], np.ndarray]  # from the tensor that was sent and the trained one


def of_length(length: float) -> Change:
    """A random change with a multiple of the norm of the trained one."""
    generator = np.random.default_rng(0)

    def change(sent: np.ndarray, trained: np.ndarray) -> np.ndarray:
        drawn = generator.standard_normal(sent.shape, np.float32)
        return sent + drawn * (length * np.linalg.norm(trained - sent) / np.linalg.norm(drawn))

    return change


ATTACKS: dict[str, Change] = {
    "none": lambda sent, trained: trained,
    "sign": lambda sent, trained: sent - 5 * (trained - sent),
    "noise": of_length(5),
    "scale": lambda sent, trained: sent + 1000 * (trained - sent),
    "nan": lambda sent, trained: np.full_like(trained, np.nan),
}


class Hostile:
    """A proxy for an honest node."""

    def __init__(self, socket: pathlib.Path, behind: pathlib.Path) -> None:
        self.behind, self.change, self.lock = behind, ATTACKS["none"], threading.Lock()
        self.server = UnixHttpServer(socket, self.respond)

    def respond(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        answer = local_http.request(str(self.behind), method, target, body)
        if not target.startswith("/v1/train") or answer.status != 200:
            return answer
        broadcast, _ = split_parts(body)
        sent = decode(broadcast)[1]
        with self.lock:  # random number generators are not thread-safe
            return 200, join_parts([self.changed(part, sent) for part in split_parts(answer.body)])

    def changed(self, part: memoryview, sent: dict[str, np.ndarray]) -> bytes:
        header, trained = decode(part)
        if header["kind"] != "update":
            return bytes(part)
        return encode(header, {name: self.change(sent[name], tensor) for name, tensor in trained.items()})


def measure(program: str, federation: Federation, hostile: list[int], attack: str, seed: int, more: list[str]) -> str:
    out = federation.folder / f"{attack}-{seed}"
    coordinator = fleet.start_coordinator(program, federation, out, "-q", "--set", f"seed={seed}", *more)
    app = federation.run()
    if (status := coordinator.wait(fleet.LONGEST)) != 0:
        raise SystemExit(f"error: the coordinator ended with status {status}")
    federation.wait_for_end(app)
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()][1:]
    rejected = [note["client"] for record in records for note in record["rejected"]]
    shortened = [client for record in records for client in record.get("shortened", [])]
    last = [f"{record['test_accuracy']:.1f}" for record in (records[len(records) // 2 - 1], records[-1])]

    def share(clients: list[int]) -> str:
        of_hostile = sum(client in hostile for client in clients)
        return f"{of_hostile} and {len(clients) - of_hostile}"

    rolled_back = sum(record["outcome"] == "rolled-back" for record in records)
    excluded = sorted({client for record in records for client in record["excluded"]})
    figures = [attack, seed, *last, share(rejected), share(shortened), rolled_back, excluded or "none"]
    return f"| {' | '.join(map(str, figures))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="A fleet with a third of its nodes hostile, compared with the same fleet without them.")
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--nodes", type=int, default=3, help="a multiple of three")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", default="0", help="for example 0,1")
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--records", type=pathlib.Path, metavar="DIR", help="keep the record of every run there")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the experiment")
    options = parser.parse_args()
    program, nodes = str(options.program.resolve()), options.nodes
    settings = [f"rounds={options.rounds}", *options.set]
    more = [word for setting in settings for word in ("--set", setting)]
    with taken_down() as federation:
        fleet.pictures(program, federation.folder, nodes, nodes)
        names = [f"client-{number}" for number in range(nodes)]
        hostile = list(range(nodes - nodes // 3, nodes))
        proxies = []
        for number, name in enumerate(names):
            behind = federation.folder / f"behind-{name}.sock" if number in hostile else None
            fleet.start_node(program, federation, name, behind)
            if behind:
                proxies.append(Hostile(federation.node_socket(name), behind))
        fleet.start_flower(federation, names)
        middle = options.rounds // 2
        print(f"hostile: clients {hostile} of {nodes}, where there is an attack")
        accuracies = f"accuracy, round {middle} | round {options.rounds}"
        print(f"| attack | seed | {accuracies} | rejected: hostile and honest | shortened | rounds rolled back | excluded |")
        print("| --- " * 8 + "|", flush=True)
        for seed in map(int, options.seeds.split(",")):
            for attack in options.attacks.split(","):
                for proxy in proxies:
                    proxy.change = ATTACKS[attack]
                print(measure(program, federation, hostile, attack, seed, more), flush=True)
                if options.records:
                    keep(federation.folder / f"{attack}-{seed}", options.records / attack / f"seed{seed}")


if __name__ == "__main__":
    main()
