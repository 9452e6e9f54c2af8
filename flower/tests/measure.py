"""Seconds per exchange through Flower, with nodes that answer at once: python tests/measure.py [REPEATS]

Request bodies are the same for all nodes, as a model is; reply bodies are different. Four SuperNodes are connected all the time,
of which one, two or four are asked.
"""

import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import VERSION, FakeCoordinator, UnixHttpServer, taken_down

SIZES = (1_000, 6_000_000, 45_000_000)
NODES = (1, 2, 4)


def main(repeats: int) -> None:
    arrivals: list[float] = []

    def respond(method: str, target: str, body: bytes) -> tuple[int, bytes]:
        arrivals.append(time.monotonic())
        return 200, os.urandom(len(body))

    with taken_down() as federation:
        coordinator = FakeCoordinator(federation.coordinator_socket)
        federation.start_superlink()
        for number in range(max(NODES)):
            UnixHttpServer(federation.node_socket(f"n{number}"), respond)
            federation.start_supernode(f"n{number}")
        start = time.monotonic()
        run = federation.run()
        ids = coordinator.wait_for_nodes(max(NODES))
        print(
            f"flwr {'.'.join(map(str, VERSION))}: from `flwr run` to the first question for work {time.monotonic() - start:.1f} s"
        )
        for node in ids:  # each SuperNode installs the app with the first message
            coordinator.send(node, "/", b"x").wait()
        print("bytes      nodes  all answered: median (least to most)  node reached: median  then back: median")
        for size in SIZES:
            for number in NODES:
                whole, down, up = [], [], []
                for _ in range(repeats):
                    arrivals.clear()
                    body = os.urandom(size)
                    begin = time.monotonic()
                    outcomes = [coordinator.send(node, "/", body, timeout=None) for node in ids[:number]]
                    ends = [outcome.wait(300).start + outcome.seconds for outcome in outcomes]
                    assert all(outcome.status == 200 and len(outcome.body) == size for outcome in outcomes)
                    whole.append(max(ends) - begin)
                    down.append(statistics.median(arrivals) - begin)
                    up.append(statistics.median(ends) - begin - down[-1])
                figures = f"{statistics.median(whole):5.1f} ({min(whole):.1f} to {max(whole):.1f})"
                figures = f"{figures:40}{statistics.median(down):20.1f}{statistics.median(up):19.1f}"
                print(f"{size:9}  {number:5}  {figures}", flush=True)
        for pid in federation.survivors():
            process = pathlib.Path(f"/proc/{pid}")
            words = process.joinpath("cmdline").read_text().split("\0")
            peak = next(line for line in process.joinpath("status").read_text().splitlines() if line.startswith("VmHWM"))
            print(pathlib.Path(words[1]).name, "peak memory", int(peak.split()[1]) // 1024, "MiB")
        coordinator.finish()
        start = time.monotonic()
        print(federation.wait_for_end(run), f"{time.monotonic() - start:.1f} s after the end")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
