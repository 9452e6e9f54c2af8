"""A whole fleet on this machine: `python scripts/fleet.py target/release/fedanchor` with a Python that has flwr.

Starts Flower's SuperLink and three SuperNodes, a node of fedanchor behind each, and a coordinator, all on loopback, on digits of
the embedded sample. Afterwards the same clients are simulated, and the two models are compared byte for byte. Everything is taken
down at the end, also after Ctrl-C or an error.
"""

import pathlib
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "flower" / "tests"))

from harness import Federation, logs_on_error  # noqa: E402

CLIENTS = 3
ROUNDS = 3
EXPERIMENT = f"""
preset = "best"
rounds = {ROUNDS}
data = {{ name = "digits", path = "PATH", anchors = 0, clients = {CLIENTS} }}
partition.kind = "iid"
model.name = "small"
augment.flip = false
batch_norm.statistics = "static-server"
optimiser.lr = 0.1
client = {{ per_round = {CLIENTS}, epochs = 1, batch = 32 }}
"""


def pictures(program: str, folder: pathlib.Path) -> None:
    """`all` for the simulation; of these, `server` is what the coordinator has."""
    everything = folder / "all"
    subprocess.run([program, "-q", "data", "example", str(everything), "--clients", str(CLIENTS)], check=True)
    shutil.copytree(everything / "labelled", folder / "server" / "train")
    shutil.copytree(everything / "test", folder / "server" / "test")
    for name, data in (("fleet", "server"), ("simulation", "all")):
        (folder / f"{name}.toml").write_text(EXPERIMENT.replace("PATH", str(folder / data)))


def wait_for_socket(path: pathlib.Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while not path.is_socket():
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"error: nothing listens on {path}")
        time.sleep(0.05)


def run(program: str, federation: Federation) -> None:
    folder = federation.folder
    pictures(program, folder)
    for number in range(CLIENTS):
        name = f"client-{number}"
        socket = federation.node_socket(name)
        command = [program, "node", "--data", str(folder / "all" / "unlabelled" / name)]
        command += ["--socket", str(socket), "--state", str(folder / f"{name}-state")]
        wait_for_socket(socket, federation.start(f"node-{name}", command))
    print("starting Flower", flush=True)
    federation.start_superlink()
    for number in range(CLIENTS):
        federation.start_supernode(f"client-{number}")
    # Its progress is what there is to see.
    start = time.monotonic()
    command = [program, "coordinator", str(folder / "fleet.toml"), "--socket", str(federation.coordinator_socket)]
    coordinator = subprocess.Popen([*command, "--out", str(folder / "fleet")], env=federation.environment("coordinator"))
    try:
        wait_for_socket(federation.coordinator_socket, coordinator)
        app = federation.run()
        status = coordinator.wait()
        seconds = time.monotonic() - start
    except BaseException:
        coordinator.send_signal(signal.SIGKILL)
        raise
    if status != 0:
        raise SystemExit(f"error: the coordinator ended with status {status}")
    print(f"Flower's run: {federation.wait_for_end(app)}; {seconds:.0f} s", flush=True)
    simulated = folder / "simulated"
    subprocess.run([program, "-q", "run", str(folder / "simulation.toml"), "--out", str(simulated)], check=True)
    models = [(path / "model.safetensors").read_bytes() for path in (folder / "fleet", simulated)]
    if models[0] != models[1]:
        raise SystemExit("error: the fleet's model is not the one of the simulation of the same clients")
    print("the fleet's model is the one of the simulation of the same clients, byte for byte", flush=True)


def main() -> None:
    program = str(pathlib.Path(sys.argv[1]).resolve())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    federation = Federation()
    try:
        with logs_on_error(federation):
            run(program, federation)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        left = federation.close()
        if left:
            print(f"error: could not be ended: processes {left}", file=sys.stderr)


if __name__ == "__main__":
    main()
