"""A fleet with failures, on a real Flower: `python scripts/check_fleet.py target/debug/fedanchor`.

One federation with TLS and a key for each node, and several runs: a node without a registered key, a flood, a killed coordinator, a
restarted SuperLink, a node that is killed and returns, a hostile node, a SuperNode that is killed while its node trains. Needs
openssl and ssh-keygen, and about twenty minutes.
"""

import contextlib
import json
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

from fleet import (
    LONGEST,
    NAMES,
    Federation,
    pictures,
    simulate,
    start_coordinator,
    start_node,
)
from fedanchor_flower import local_http
from harness import HTTP, UnixHttpServer, taken_down


def records(out: pathlib.Path) -> list[dict]:
    path = out / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(what: str, condition: Callable[[], bool], timeout: float = 180.0) -> None:
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"error: timed out waiting for {what}")
        time.sleep(0.1)


def expect(what: str, condition: bool) -> None:
    if not condition:
        raise SystemExit(f"error: {what}: no")
    print(f"ok: {what}", flush=True)


def a_killed_coordinator_resumes(program: str, federation: Federation) -> None:
    out = federation.folder / "killed"
    first = start_coordinator(program, federation, out)
    app = federation.run(connect_timeout=120.0)
    wait_for("the first round", lambda: len(records(out)) >= 2)
    time.sleep(1)  # in the middle of the second
    first.kill()
    first.wait(LONGEST)
    second = start_coordinator(program, federation, out)
    expect(
        "a coordinator that was killed resumes, and the same Flower run continues",
        second.wait(LONGEST) == 0,
    )
    expect(
        "Flower calls the run completed",
        federation.wait_for_end(app) == "finished:completed",
    )
    model = (out / "model.safetensors").read_bytes()
    expect(
        "the model is that of the simulation, byte for byte",
        model == simulate(program, federation),
    )


def a_restarted_superlink_goes_on(
    program: str, federation: Federation, supernodes: dict[str, subprocess.Popen[bytes]]
) -> None:
    out = federation.folder / "restarted"
    coordinator = start_coordinator(program, federation, out)
    federation.run(connect_timeout=120.0)
    wait_for("the first round", lambda: len(records(out)) >= 2)
    federation.restart_superlink()
    app = federation.run(connect_timeout=120.0)

    def is_over() -> bool:
        for name, process in supernodes.items():
            if process.poll() is not None:  # as a service manager does
                supernodes[name] = federation.start_supernode(name, federation.key_options(name))
        time.sleep(1)
        return coordinator.poll() is not None

    wait_for("the coordinator", is_over, 600)
    expect("after a restart of the SuperLink a new Flower run continues", coordinator.returncode == 0)
    expect("Flower calls the new run completed", federation.wait_for_end(app) == "finished:completed")
    expect(
        "the model is that of the simulation, byte for byte",
        (out / "model.safetensors").read_bytes() == (federation.folder / "simulated" / "model.safetensors").read_bytes(),
    )


def a_killed_node_comes_back(program: str, federation: Federation, nodes: dict[str, subprocess.Popen[bytes]]) -> None:
    out = federation.folder / "node"
    coordinator = start_coordinator(program, federation, out, "--set", "rounds=15")
    app = federation.run()
    wait_for("the first round", lambda: len(records(out)) >= 2)
    federation.kill(nodes["client-1"])
    wait_for("the second round", lambda: len(records(out)) >= 3)
    nodes["client-1"] = start_node(program, federation, "client-1")
    expect("the run continues without a node that was killed", coordinator.wait(LONGEST) == 0)
    absent = [record.get("absent", []) for record in records(out)]
    asked = [1 in record["clients"] for record in records(out)[1:]]
    expect(
        f"it is recorded as absent, and takes part again: {absent} {asked}",
        [1] in absent and absent[-1] == [] and False in asked and asked[-1],
    )
    federation.wait_for_end(app)


def not_a_number(answer: bytes) -> bytes:
    """An answer whose last number is NaN."""
    return answer[:-4] + struct.pack("<f", float("nan"))


def a_billion_samples(answer: bytes) -> bytes:
    """An answer that claims many more images than the client has."""
    return with_header(answer, lambda header: re.sub(rb'("samples\\*":)\d+', rb"\g<1>1000000000", header))


def another_shape(answer: bytes) -> bytes:
    """An answer whose first tensor of two axes is transposed."""

    def turn(header: bytes) -> bytes:
        return re.sub(rb'"shape":\[(\d+),(\d+)\]', rb'"shape":[\g<2>,\g<1>]', header, count=1)

    return with_header(answer, turn)


def with_header(answer: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """An answer with a changed header, and the lengths before it."""
    (length,) = struct.unpack("<Q", answer[8:16])
    header, tensors = answer[16 : 16 + length], answer[16 + length :]
    changed = change(header)
    if changed == header:
        raise SystemExit(f"error: nothing to change in {header[:300]!r}")
    changed += b" " * (-len(changed) % 8)
    part = struct.pack("<Q", len(changed)) + changed + tensors
    return struct.pack("<Q", len(part)) + part


@contextlib.contextmanager
def changed_answers(
    program: str,
    federation: Federation,
    nodes: dict[str, subprocess.Popen[bytes]],
    change: Callable[[bytes], bytes],
) -> Iterator[None]:
    """Replace the third node by a proxy that changes its answers to `train`."""
    federation.kill(nodes["client-2"])
    behind = federation.folder / "behind.sock"
    nodes["client-2"] = start_node(program, federation, "client-2", behind)

    def respond(method: str, target: str, body: bytes) -> tuple[int, bytes]:
        status, reply = local_http.request(str(behind), method, target, body, timeout=120)
        if target.startswith("/v1/train") and status == 200:
            reply = change(reply)
        return status, reply

    server = UnixHttpServer(federation.node_socket("client-2"), respond)
    try:
        yield
    finally:
        server.stop()


def a_hostile_node_is_excluded(program: str, federation: Federation, spoil: Callable[[bytes], bytes], reason: str) -> None:
    """It sends the answers of an honest node with one change."""
    name = spoil.__name__
    out = federation.folder / name
    coordinator = start_coordinator(program, federation, out, "--set", "rounds=4")
    app = federation.run()
    expect(f"the run completes with a hostile node: {name}", coordinator.wait(LONGEST) == 0)
    rounds = records(out)[1:]
    named = [[note["client"] for note in record["rejected"]] for record in rounds]
    expect(f"its updates are rejected: {named}", named[:3] == [[2]] * 3)
    found = rounds[0]["rejected"][0]["reason"]
    expect(f"for the right reason: {found}", reason in found)
    expect("after the third it is not asked again", rounds[3]["clients"] == [0, 1])
    federation.wait_for_end(app)


def a_killed_supernode_holds_up_a_round_for_minutes(
    program: str,
    federation: Federation,
    nodes: dict[str, subprocess.Popen[bytes]],
    supernodes: dict[str, subprocess.Popen[bytes]],
) -> None:
    training = threading.Event()

    def slow(answer: bytes) -> bytes:
        if not training.is_set():
            training.set()
            time.sleep(30)
        return answer

    with changed_answers(program, federation, nodes, slow):
        out = federation.folder / "lost"
        coordinator = start_coordinator(program, federation, out, "--set", "rounds=2")
        app = federation.run()
        training.wait(LONGEST)
        federation.kill(supernodes["client-2"])

        def is_over() -> bool:
            if supernodes["client-2"].poll() is not None:  # as a service manager does
                supernodes["client-2"] = federation.start_supernode("client-2", federation.key_options("client-2"))
            time.sleep(1)
            return coordinator.poll() is not None

        wait_for("the coordinator", is_over, 900)
    expect("the run completes although a SuperNode was killed while its node trained", coordinator.returncode == 0)
    lost = records(out)[1]["lost"]
    expect(f"its update is recorded as lost: {lost}", [note["client"] for note in lost] == [2])
    federation.wait_for_end(app)


def a_registered_node_cannot_take_a_name(
    program: str,
    federation: Federation,
    nodes: dict[str, subprocess.Popen[bytes]],
    supernodes: dict[str, subprocess.Popen[bytes]],
) -> None:
    """Nor when the name's node is away and coordinator, node and SuperNode have been restarted."""

    def restart(name: str) -> None:
        supernodes[name].terminate()
        supernodes[name].wait(60)
        supernodes[name] = federation.start_supernode(name, federation.key_options(name))

    out, log = federation.folder / "claimed", federation.folder / "claimed.txt"
    first = start_coordinator(program, federation, out)
    app = federation.run(connect_timeout=120.0)
    wait_for("the first round", lambda: len(records(out)) >= 2)
    first.kill()
    first.wait(LONGEST)
    bound = (out / "node-keys.json").read_bytes()
    for name in ("client-1", "client-2"):
        federation.kill(nodes[name])
    supernodes["client-2"].terminate()
    supernodes["client-2"].wait(60)
    nodes["client-1"] = start_node(program, federation, "client-2", federation.node_socket("client-1"))
    restart("client-1")
    with log.open("wb") as file:
        second = start_coordinator(program, federation, out, log=file)
    wait_for("a refusal", lambda: b"bound to the key of another node" in log.read_bytes())
    expect("a registered node that claims another's name is refused", b'client-2' in log.read_bytes())
    expect("no round begins with it", len(records(out)) == 2 and (out / "node-keys.json").read_bytes() == bound)
    federation.kill(nodes["client-1"])
    for name in ("client-1", "client-2"):
        nodes[name] = start_node(program, federation, name)
        restart(name)
    expect("the run goes on with the nodes whose names they are", second.wait(LONGEST) == 0)
    expect("all of them take part", records(out)[-1]["clients"] == [0, 1, 2] and "absent" not in records(out)[-1])
    federation.wait_for_end(app)


def peak(pid: int) -> int:
    """The peak memory of a process in bytes."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


def a_gigabyte_is_refused(program: str, federation: Federation) -> None:
    out = federation.folder / "flood"
    coordinator = start_coordinator(program, federation, out)
    before = peak(coordinator.pid)
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(str(federation.coordinator_socket))
    client.sendall(b"POST /v1/work HTTP/1.1\r\nhost: x\r\ncontent-length: 1073741824\r\n\r\n")
    sent, chunk = 0, b" " * (1 << 20)
    try:
        while sent < 1 << 30:
            client.sendall(chunk)
            sent += len(chunk)
    except OSError:
        pass  # refused in the middle
    after = peak(coordinator.pid)
    expect(
        f"of a gigabyte {sent >> 20} MiB are read, and memory grows by {(after - before) >> 20} MiB",
        after - before < 200 << 20,
    )
    expect("the coordinator continues", coordinator.poll() is None)
    coordinator.send_signal(signal.SIGINT)
    expect("Ctrl-C ends a coordinator that waits for nodes", coordinator.wait(LONGEST) == 130)


def main() -> None:
    program = str(pathlib.Path(sys.argv[1]).resolve())
    with taken_down() as federation:
        pictures(program, federation.folder)
        nodes = {name: start_node(program, federation, name) for name in NAMES}
        federation.make_key("stranger")
        federation.start_secure_superlink(NAMES)
        supernodes = {name: federation.start_supernode(name, federation.key_options(name)) for name in NAMES}
        stranger = federation.start_supernode("stranger", federation.key_options("stranger"))
        a_gigabyte_is_refused(program, federation)
        a_killed_coordinator_resumes(program, federation)
        if HTTP:  # earlier versions keep no keys on disk
            a_restarted_superlink_goes_on(program, federation, supernodes)
        a_killed_node_comes_back(program, federation, nodes)
        for spoil, reason in ((not_a_number, "finite"), (another_shape, "expected ["), (a_billion_samples, "1000000000")):
            with changed_answers(program, federation, nodes, spoil):
                a_hostile_node_is_excluded(program, federation, spoil, reason)
        if HTTP:  # earlier versions give a restarted SuperNode a new id
            a_killed_supernode_holds_up_a_round_for_minutes(program, federation, nodes, supernodes)
            a_registered_node_cannot_take_a_name(program, federation, nodes, supernodes)
        # In earlier versions it keeps trying.
        expect(
            "a node without a registered key was refused",
            not HTTP or stranger.poll() not in (None, 0),
        )
    print("ok: all processes have ended")


if __name__ == "__main__":
    main()
