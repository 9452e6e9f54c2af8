"""The daily work of an operator, on a real Flower: `python scripts/check_operation.py target/debug/fedanchor`.

One federation with TLS and a key for each node, and several runs: one that is stopped, resumed and extended; a node that joins
late and one that leaves; a node with a new key; nodes that lag; programs that are replaced by another build during the run; a
server that is lost and restored from a back-up. After the program, names of these functions choose some of them. Needs openssl
and ssh-keygen, and about twenty minutes. Each paragraph of "Operation" in docs/fleet.md is tested here.
"""

import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from check_fleet import expect, records, wait_for
from fleet import LONGEST, NAMES, ROUNDS, pictures, start_coordinator, start_node
from harness import HTTP, Federation, taken_down

DAY = 24 * 60 * 60
# Seconds for which a node lags: more than a round waits, than Flower takes to notice, and than a message is kept.
LAG = 120
DEADLINE = 40
# Seconds within which it takes part again. A request to join that was lost with its ClientApp is repeated after ten minutes.
REJOIN = 900
# What a node prints whose client starts without its state.
NO_STATE = "no state from earlier rounds"


@dataclasses.dataclass
class Devices:
    """The devices of a fleet: a node and its SuperNode each, by the names of their clients."""

    program: str
    federation: Federation
    nodes: dict[str, subprocess.Popen[bytes]] = dataclasses.field(default_factory=dict)
    supernodes: dict[str, subprocess.Popen[bytes]] = dataclasses.field(default_factory=dict)
    # The names of their keys' files.
    keys: dict[str, str] = dataclasses.field(default_factory=lambda: {name: name for name in NAMES})

    def start(self, name: str) -> None:
        self.nodes[name] = start_node(self.program, self.federation, name)
        self.start_supernode(name)

    def start_supernode(self, name: str) -> None:
        self.supernodes[name] = self.federation.start_supernode(name, self.federation.key_options(self.keys[name]))

    def stop(self, name: str) -> int:
        """Stop both as a service manager does; returns the node's exit status."""
        for process in (self.nodes[name], self.supernodes[name]):
            process.terminate()
            process.wait(LONGEST)
        return self.nodes[name].returncode

    def log(self, name: str) -> str:
        return self.federation.log(f"node-{name}").read_text(errors="replace")

    def signal(self, name: str, number: signal.Signals, which: tuple[str, ...]) -> None:
        """Send a signal to its node, or its SuperNode, or both, and to their children."""
        processes = {"node": self.nodes[name], "supernode": self.supernodes[name]}
        for each in which:
            os.killpg(processes[each].pid, number)


class Run:
    """A coordinator with a Flower run, and what it prints."""

    def __init__(self, devices: Devices, out: pathlib.Path, *more: str, program: str | None = None) -> None:
        self.out, self.federation = out, devices.federation
        self.log = out.with_name(f"{out.name}-{time.monotonic_ns()}.txt")
        with self.log.open("wb") as file:
            self.coordinator = start_coordinator(program or devices.program, self.federation, out, *more, log=file)
        self.app = self.federation.run(connect_timeout=120.0)

    def printed(self) -> str:
        return self.log.read_text(errors="replace")

    def rounds(self) -> list[dict[str, Any]]:
        """The records without that of the pre-training."""
        return records(self.out)[1:]

    def wait_for_rounds(self, number: int) -> None:
        """Wait until this many more rounds are on record."""
        end = len(self.rounds()) + number
        self.wait_for(f"round {end}", lambda: len(self.rounds()) >= end)

    def wait_for(self, what: str, condition: Callable[[], bool], timeout: float = 300.0) -> None:
        def is_so() -> bool:
            if condition():
                return True
            if self.coordinator.poll() is not None:
                raise SystemExit(f"error: the coordinator has ended before {what}: {self.printed()[-2000:]}")
            return False

        wait_for(what, is_so, timeout)

    def wait_until_it_trains(self, number: int, timeout: float = 300.0) -> None:
        """Wait for a new round in which the client of this number takes part."""
        first = len(self.rounds())
        self.wait_for(f"client {number}", lambda: any(takes_part(record, number) for record in self.rounds()[first:]), timeout)

    def complete(self) -> None:
        status = self.coordinator.wait(LONGEST)
        if status != 0:
            raise SystemExit(f"error: the coordinator ended with status {status}: {self.printed()[-2000:]}")
        expect("Flower calls the run completed", self.federation.wait_for_end(self.app) == "finished:completed")

    def stop(self) -> None:
        self.coordinator.terminate()
        expect("SIGTERM ends the coordinator with status 130", self.coordinator.wait(LONGEST) == 130)
        expect("Flower calls the run failed", self.federation.wait_for_end(self.app) == "finished:failed")


def takes_part(record: dict[str, Any], number: int) -> bool:
    return number in record["clients"] and number not in record.get("absent", [])


def model(out: pathlib.Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


def simulated(devices: Devices, name: str, *more: str) -> bytes:
    """The model of the simulation of the same clients, with other settings."""
    out = devices.federation.folder / name
    what = ["--resume", str(out)] if out.exists() else [str(devices.federation.folder / "simulation.toml"), "--out", str(out)]
    subprocess.run([devices.program, "-q", "run", *what, *more], check=True, timeout=LONGEST)
    return model(out)


def refused(devices: Devices, *options: str) -> str:
    """What a coordinator prints that does not start."""
    command = [devices.program, "coordinator", "--socket", str(devices.federation.coordinator_socket), *options]
    done = subprocess.run(command, env=devices.federation.environment("coordinator"), capture_output=True, text=True, timeout=60)
    if done.returncode != 1:
        raise SystemExit(f"error: expected exit status 1, got {done.returncode}: {done.stderr}")
    return done.stderr


def is_intact(devices: Devices, out: pathlib.Path) -> bool:
    return subprocess.run([devices.program, "-q", "verify", str(out)], timeout=60).returncode == 0


def a_run_is_paused_stopped_and_extended(devices: Devices) -> None:
    out = devices.federation.folder / "paused"
    first = Run(devices, out)
    first.wait_for_rounds(1)
    first.stop()
    done = len(first.rounds())
    advice = re.search(rf"interrupted: {done} of {ROUNDS} rounds are done; resume with `fedanchor (.*)`", first.printed())
    expect(f"it says what is done, and how to resume: {advice and advice[0]}", advice is not None and 1 <= done < ROUNDS)
    assert advice is not None
    expect("a run that was stopped has its model, and is intact", bool(model(out)) and is_intact(devices, out))
    processes = [*devices.nodes.values(), *devices.supernodes.values()]
    expect("the devices go on", all(process.poll() is None for process in processes))
    problem = refused(devices, "--resume", str(out), "--set", f"rounds={ROUNDS - 1}").splitlines()[-1]
    expect(f"fewer rounds are refused: {problem}", f"rounds (there {ROUNDS}, now {ROUNDS - 1})" in problem)
    options = shlex.split(advice[1])
    where = ["coordinator", "--resume", str(out), "--socket", str(devices.federation.coordinator_socket)]
    expect("the command is that of this run", options == where)
    second = Run(devices, out)
    second.wait_for("a joined node", lambda: "resuming after round" in second.printed())
    devices.federation.command_line("stop", second.app, "local")
    expect("Flower calls a run stopped that it stops", second.federation.wait_for_end(second.app) == "finished:stopped")
    second.app = devices.federation.run(connect_timeout=120.0)
    second.complete()
    expect("a resumed run has the model of the simulation, byte for byte", model(out) == simulated(devices, "as-planned"))
    third = Run(devices, out, "--set", f"rounds={2 * ROUNDS}")
    third.complete()
    expect("an extended run has all rounds", [record["round"] for record in records(out)] == [*range(2 * ROUNDS + 1)])
    expect(
        "its model is that of the simulation that is extended likewise, byte for byte",
        model(out) == simulated(devices, "as-planned", "--set", f"rounds={2 * ROUNDS}"),
    )
    # A unit that starts again when the server does finds a run without work.
    command = [devices.program, "-q", *where]
    expect("a finished run that is resumed ends at once", subprocess.run(command, timeout=120).returncode == 0)


def a_node_joins_late_and_another_leaves(devices: Devices) -> None:
    devices.stop("client-2")
    settings = ("--set", "rounds=90", "--set", "data.clients=2", "--set", "client.per_round=2")
    run = Run(devices, devices.federation.folder / "late", *settings)
    run.wait_for_rounds(2)
    expect("a run goes on with the clients that have joined", all(record["clients"] == [0, 1] for record in run.rounds()))
    devices.start("client-2")
    run.wait_until_it_trains(2)
    names = next(record["client_names"] for record in run.rounds() if 2 in record["clients"])
    expect(f"a node that joins late takes part under the next number: {names}", names[-1] == "client-2")
    expect("a node that leaves ends with status 0", devices.stop("client-1") == 0)
    run.wait_for_rounds(1)  # in which its request may be lost
    since = len(run.rounds())
    run.wait_for_rounds(2)
    drawn = [(record["clients"], record.get("absent", [])) for record in run.rounds()[since:]]
    expect(f"no round waits for a node that has left: {drawn}", all(each == ([0, 2], []) for each in drawn))
    devices.start("client-1")
    run.wait_until_it_trains(1)
    names = {record["client_names"][record["clients"].index(1)] for record in run.rounds() if 1 in record["clients"]}
    expect("when it returns it has its number", names == {"client-1"})
    run.stop()
    since = len(run.rounds())
    grown = Run(devices, run.out, "--set", "data.clients=3", "--set", "client.per_round=3", "--force")
    grown.wait_for_rounds(1)
    expect("a fleet that has grown has more clients in each round", grown.rounds()[since]["clients"] == [0, 1, 2])
    grown.stop()


def supernodes(federation: Federation, status: str) -> list[str]:
    """The ids of those with this status."""
    listed = json.loads(federation.command_line("supernode", "list", "local", "--format", "json"))["nodes"]
    return [node["node-id"] for node in listed if node["status"] == status]


def a_node_changes_its_key(devices: Devices) -> None:
    federation, out = devices.federation, devices.federation.folder / "rekeyed"

    def bound() -> dict[str, str]:
        return dict(json.loads((out / "node-keys.json").read_text()))

    first = Run(devices, out, "--set", "rounds=60")
    first.wait_for_rounds(1)
    before = bound()
    devices.stop("client-1")
    wait_for("an offline node", lambda: len(supernodes(federation, "offline")) == 1)
    federation.command_line("supernode", "unregister", *supernodes(federation, "offline"), "local")
    unregistered = federation.start_supernode("client-1", federation.key_options("client-1"))
    expect("a SuperNode whose key was unregistered ends with an error", unregistered.wait(LONGEST) != 0)
    federation.command_line("supernode", "register", str(federation.make_key("renewed")), "local")
    devices.keys["client-1"] = "renewed"
    devices.start("client-1")
    first.wait_for("a refusal", lambda: "is bound to the key of another node" in first.printed())
    since = len(first.rounds())
    first.wait_for_rounds(1)
    expect(
        "a node with a new key stays outside, and the run goes on",
        bound() == before and all(record["clients"] == [0, 2] for record in first.rounds()[since:]),
    )
    first.stop()
    release = ("--release", f"client-1={before['client-1'][:8]}")
    second = Run(devices, out, *release)
    second.wait_until_it_trains(1)
    after = bound()
    changed = [name for name in NAMES if after[name] != before[name]]
    expect("with --release its name is bound to the new key, and no other name is", changed == ["client-1"])
    second.stop()
    third = Run(devices, out, *release)
    third.wait_until_it_trains(1)
    expect(
        "given again, it does nothing",
        bound() == after and "not bound to this key any more" in third.printed(),
    )
    third.stop()


def a_node_lags(devices: Devices, name: str, *settings: str, frozen: tuple[str, ...]) -> None:
    """It is frozen for longer than all limits that apply, so that more time would change nothing: a round's deadline, Flower's
    minute of patience, the lifetime of a message. Its state is made a day old."""
    federation, out = devices.federation, devices.federation.folder / name
    all_settings = ["rounds=90", "method.name=fedcon", "method.predictor=64", *settings]
    run = Run(devices, out, *[option for setting in all_settings for option in ("--set", setting)])
    run.wait_until_it_trains(2)
    devices.signal("client-2", signal.SIGSTOP, frozen)
    since, start, said = len(run.rounds()), time.monotonic(), len(devices.log("client-2"))
    run.wait_for("three rounds without it", lambda: len(run.rounds()) >= since + 3 and time.monotonic() - start >= LAG)
    states = list((federation.folder / "client-2-state").glob("*.state"))
    for state in states:
        os.utime(state, (time.time() - DAY, time.time() - DAY))
    meanwhile = run.rounds()[since:]
    devices.signal("client-2", signal.SIGCONT, frozen)
    if "supernode" in frozen:
        # One that slept with a request in hand does not always come back by itself.
        devices.supernodes["client-2"].terminate()
        devices.supernodes["client-2"].wait(LONGEST)
        devices.start_supernode("client-2")
    absent = [record["round"] for record in meanwhile if 2 in record.get("absent", [])]
    lost = [note["reason"] for record in meanwhile for note in record.get("lost", [])]
    expect(f"rounds end without it: of {len(meanwhile)}, absent in {absent}, {lost}", absent != [])
    # It may have answered the first one before.
    late = [record["round"] for record in meanwhile[1:] if takes_part(record, 2)]
    expect(f"nothing of it counts meanwhile: {late}", late == [])
    start = time.monotonic()
    run.wait_until_it_trains(2, REJOIN)
    expect(f"when it is back it takes part, after {time.monotonic() - start:.0f} s", True)
    expect("its late answers are no offence", all(record["rejected"] == [] for record in run.rounds()))
    expect("it goes on from its old state", states != [] and NO_STATE not in devices.log("client-2")[said:])
    run.stop()


def a_node_answers_late(devices: Devices) -> None:
    """Its SuperNode stays connected."""
    a_node_lags(devices, "behind", f"fleet.deadline={DEADLINE}", frozen=("node",))


def a_device_sleeps(devices: Devices) -> None:
    """Rounds have no deadline."""
    a_node_lags(devices, "asleep", frozen=("node", "supernode"))


def a_state_is_missing(devices: Devices) -> None:
    """The message that is absent in the checks above."""
    settings = ("--set", "rounds=90", "--set", "method.name=fedcon", "--set", "method.predictor=64")
    run = Run(devices, devices.federation.folder / "bare", *settings)
    run.wait_until_it_trains(2)
    devices.stop("client-2")
    said = len(devices.log("client-2"))
    for state in (devices.federation.folder / "client-2-state").glob("*.state"):
        state.unlink()
    devices.start("client-2")
    run.wait_until_it_trains(2)
    expect("a node whose state was removed says so, and takes part", NO_STATE in devices.log("client-2")[said:])
    run.stop()


def another_build(devices: Devices) -> str:
    """The same program with another commit, which is all that a build is told by."""
    said = subprocess.run([devices.program, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    commit = re.search(r"\(([0-9a-f]{12})", said)
    if commit is None:
        raise SystemExit(f"error: {said.strip()}: the commit is unknown: build it in a checkout")
    binary, digits = pathlib.Path(devices.program).read_bytes(), commit[1].encode()
    if digits not in binary:
        raise SystemExit("error: the program does not contain its commit")
    other = devices.federation.folder / "another-build"
    other.write_bytes(binary.replace(digits, b"0123456789ab"))
    other.chmod(0o755)
    return str(other)


def programs_are_replaced_one_by_one(devices: Devices) -> None:
    out, other = devices.federation.folder / "upgraded", another_build(devices)
    run = Run(devices, out, "--set", "rounds=60")
    run.wait_for_rounds(1)
    for number, name in enumerate(NAMES):
        expect(f"the node of {name} ends with status 0", devices.stop(name) == 0)
        devices.nodes[name] = start_node(other, devices.federation, name)
        devices.start_supernode(name)
        run.wait_until_it_trains(number)
    notes = {note for record in run.rounds() for note in record.get("notes", []) if "another build: 0.1.0 (0123456789ab" in note}
    expect(f"each takes part with another build, which a note names: {sorted(notes)[:1]}", len(notes) == len(NAMES))
    waited = [record["absent"] for record in run.rounds() if record.get("absent")]
    expect(f"no round lacks more than the device that is replaced: {waited}", all(len(each) == 1 for each in waited))
    run.stop()
    since = len(run.rounds())
    resumed = Run(devices, out, program=other)
    resumed.wait_for_rounds(2)
    told = [note for record in resumed.rounds()[since:] for note in record.get("notes", [])]
    expect(f"the coordinator's other build resumes the run: {told}", any("resumed with another build" in note for note in told))
    resumed.stop()
    for name in NAMES:
        devices.nodes[name].terminate()
        devices.nodes[name].wait(LONGEST)
        devices.nodes[name] = start_node(devices.program, devices.federation, name)


def back_up(out: pathlib.Path, copy: pathlib.Path) -> None:
    """As the document says: checkpoints first."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    subprocess.run(["sh", "-c", 'cp -r "$0/checkpoints" "$1" && cp "$0"/*.* "$1"', str(out), str(copy)], check=True, timeout=60)


def a_lost_server_is_restored(devices: Devices) -> None:
    """From a copy that was made during the run; with the pictures in another place, and without the SuperLink's database."""
    federation, folder = devices.federation, devices.federation.folder
    out, copy, restored = folder / "lost-server", folder / "copy", folder / "restored"
    first = Run(devices, out, "--set", "rounds=8")
    first.wait_for_rounds(2)
    back_up(out, copy)
    copied = len(records(copy)) - 1
    first.wait_for_rounds(3)
    first.coordinator.kill()
    first.coordinator.wait(LONGEST)
    # Records that are older than the checkpoints.
    torn = folder / "torn"
    shutil.copytree(out, torn)
    shutil.copy(copy / "rounds.jsonl", torn)
    problem = refused(devices, "--resume", str(torn))
    expect(f"a copy whose records are older than its checkpoints is refused: {problem.splitlines()[-1]}", "--force" in problem)
    shutil.rmtree(out)
    for path in folder.glob("flower.db*"):
        path.unlink()
    federation.restart_superlink()
    for name in NAMES:
        federation.command_line("supernode", "register", str(folder / f"{devices.keys[name]}_key.pub"), "local")
        devices.supernodes[name].terminate()
        devices.supernodes[name].wait(LONGEST)
        devices.start_supernode(name)
    shutil.copytree(copy, restored)
    moved = shutil.move(folder / "server", folder / "pictures")
    second = Run(devices, restored, "--set", f"data.path={moved}")
    second.complete()
    shutil.move(moved, folder / "server")
    expect(
        f"a run that is restored from round {copied} ends with the model of the simulation, byte for byte",
        model(restored) == simulated(devices, "eight-rounds", "--set", "rounds=8"),
    )
    everyone = [*range(len(NAMES))]
    expect("no round lacks a client", all(record["clients"] == everyone and "absent" not in record for record in second.rounds()))
    keys = [json.loads((place / "node-keys.json").read_text()) for place in (copy, restored)]
    expect("a new SuperLink does not change which keys names are bound to", keys[0] == keys[1] and len(keys[0]) == len(NAMES))
    expect("the restored run is intact", is_intact(devices, restored))


CHECKS = (
    a_run_is_paused_stopped_and_extended,
    a_node_joins_late_and_another_leaves,
    a_node_changes_its_key,
    a_node_answers_late,
    a_device_sleeps,
    a_state_is_missing,
    programs_are_replaced_one_by_one,
    a_lost_server_is_restored,
)


def main() -> None:
    if not HTTP:
        raise SystemExit("error: needs flwr 1.40 or later")
    program, *chosen = sys.argv[1:]
    if unknown := set(chosen) - {check.__name__ for check in CHECKS}:
        raise SystemExit(f"error: no such checks: {', '.join(sorted(unknown))}")
    with taken_down() as federation:
        devices = Devices(str(pathlib.Path(program).resolve()), federation)
        pictures(devices.program, federation.folder)
        federation.start_secure_superlink(NAMES)
        for name in NAMES:
            devices.start(name)
        for check in CHECKS:
            if not chosen or check.__name__ in chosen:
                start = time.monotonic()
                check(devices)
                print(f"{check.__name__}: {time.monotonic() - start:.0f} s", flush=True)
    print("ok: all processes have ended")


if __name__ == "__main__":
    main()
