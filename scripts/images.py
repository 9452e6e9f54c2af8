#!/usr/bin/env python3
"""Builds the container images of node and coordinator, and runs the fleet of `make fleet` in them:

    target/compose/bin/python scripts/images.py                     # with the newest archive in target/dist
    target/compose/bin/python scripts/images.py ARCHIVE --keep      # leaves the images and the storage in target/images

Needs podman with crun or runc (on Debian: `apt-get install podman crun netavark aardvark-dns`) and podman-compose, which
`make target/compose/ready` installs. The base of the images is made of Debian's packages by mmdebstrap, from the sources
that apt uses on this machine, so that no image registry is needed; `--base` names another image instead. Images,
containers, networks and volumes are in a storage of their own below target/images, and are removed at the end.
"""

import argparse
import contextlib
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
IMAGES = REPOSITORY / "target" / "images"
TARGETS = ["node", "coordinator"]
SERVICES = ["coordinator", "node-0", "node-1", "node-2"]
USER = "10001"
ROUNDS = 3
# What the images need of a base, as packages of Debian.
PACKAGES = ["python3", "python3-venv", "ca-certificates"]
LIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
# The timeout of a step, in seconds.
LONGEST = 1800


class ImagesError(Exception):
    """A problem and what to do about it, in one line."""


def expect(what: str, true: bool) -> None:
    if not true:
        raise ImagesError(f"not so: {what}")
    print(f"ok: {what}", flush=True)


def output_of(command: list[str], **options: object) -> str:
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, **options)  # type: ignore[call-overload]
    if outcome.returncode != 0:
        raise ImagesError(f"{' '.join(command)}: {(outcome.stderr or outcome.stdout).strip()}")
    return str(outcome.stdout)


# The base image.


def debian_sources(indexes: str) -> tuple[str, list[str]]:
    """The suite and the sources of Debian that apt uses, from `apt-get indextargets`: address, suite, origin, keyring."""
    sources: dict[str, None] = {}
    suites = []
    for line in indexes.splitlines():
        address, suite, origin, keyring = line.split("\t")
        if origin == "Debian":
            signed = f"[signed-by={keyring}] " if keyring.startswith("/") else ""
            sources[f"deb {signed}{address} {suite} main"] = None
            suites.append(suite)
    if not suites:
        raise ImagesError("apt has no lists of Debian's packages: run `apt-get update`, or name an image with --base")
    return min(suites, key=len), list(sources)


def make_base() -> Path:
    """A root file system with Python, as a tar; made once per suite."""
    fields = "\t".join(["$(REPO_URI)", "$(CODENAME)", "$(ORIGIN)", "$(SIGNED_BY)"])
    kinds = ["Created-By: Packages", "Component: main"]
    suite, sources = debian_sources(output_of(["apt-get", "indextargets", "--format", fields, *kinds]))
    base = IMAGES / f"base-{suite}.tar"
    if not base.exists():
        print(f"making a base of Debian {suite}", flush=True)
        aside = base.with_suffix(".part.tar")
        aside.unlink(missing_ok=True)
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}", suite, str(aside), *sources]
        output_of(command)
        aside.rename(base)
    return base


# The container engine.


class Engine:
    """podman with a storage of its own."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.environment = {
            **os.environ,
            "CONTAINERS_CONF": str(scratch / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(scratch / "storage.conf"),
            # Health checks are timers of systemd; without it, podman would not start a container that has one.
            **({} if Path("/run/systemd/system").is_dir() else {"DISABLE_HC_SYSTEMD": "true"}),
        }
        storage = str(IMAGES / "storage")
        # After --keep, podman's database would insist on the temporary folder of that time.
        shutil.rmtree(IMAGES / "storage" / "libpod", ignore_errors=True)
        places = {"graphroot": storage, "rootless_storage_path": storage, "runroot": str(scratch / "run")}
        self._write("storage.conf", {"storage": {"driver": "overlay", **places}})
        self._use("runc")

    def _write(self, name: str, tables: dict[str, dict[str, object]]) -> None:
        lines = []
        for table, values in tables.items():
            lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        (self._scratch / name).write_text("\n".join(lines) + "\n")

    def _use(self, runtime: str) -> None:
        # podman raises these limits by default, which not every system allows.
        limits = [f"{name}={least(limit)}:{least(limit)}" for name, limit in LIMITS.items()]
        network = {"network_backend": "netavark", "network_config_dir": str(self._scratch / "networks")}
        engine = {"runtime": runtime, "cgroup_manager": "cgroupfs", "events_logger": "file"}
        self._write("containers.conf", {"containers": {"default_ulimits": limits}, "network": network, "engine": engine})

    def choose_runtime(self, image: str) -> str:
        """The first runtime that can run a container: crun refuses the cgroups of some systems."""
        reasons = []
        for runtime in filter(shutil.which, ("crun", "runc")):
            self._use(runtime)
            outcome = self.run("run", "--rm", "--network", "none", image, "true")
            if outcome.returncode == 0:
                return runtime
            reasons.append(outcome.stderr.strip())
        raise ImagesError(f"no container can be run here: {'; '.join(reasons) or 'install crun or runc'}")

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["podman", *words], env=self.environment, capture_output=True, text=True, timeout=LONGEST)

    def podman(self, *words: str) -> str:
        return output_of(["podman", *words], env=self.environment)

    def compose(self, *words: str) -> str:
        command = [sys.executable, "-m", "podman_compose", "-f", str(REPOSITORY / "flower" / "compose.yaml"), *words]
        return output_of(command, env=self.environment)


def least(limit: int) -> int:
    hard = resource.getrlimit(limit)[1]
    return 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)


@contextlib.contextmanager
def engine(keep: bool) -> Iterator[Engine]:
    for tool in ("podman", "mmdebstrap"):
        if not shutil.which(tool):
            raise ImagesError(f"{tool} is missing: install it (on Debian: apt-get install {tool})")
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fa-images-") as scratch:
        made = Engine(Path(scratch))
        try:
            yield made
        finally:
            with contextlib.suppress(ImagesError):
                made.compose("down", "--volumes", "--timeout", "5")
            if not keep:
                made.run("system", "reset", "--force")


# The images.


def build(podman: Engine, base: str, archive: Path) -> None:
    certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    words = ["build", "--format", "docker", "--network", "host", "-f", str(REPOSITORY / "flower" / "Containerfile")]
    words += ["--build-arg", f"BASE={base}", "--build-arg", f"ARCHIVE={archive.name}"]
    if index := os.environ.get("PIP_INDEX_URL"):
        words += ["--build-arg", f"PIP_INDEX_URL={index}"]
    if certificates:  # of a network that has its own; only while the image is built
        words += ["--volume", f"{certificates}:/etc/ssl/host.crt:ro", "--build-arg", "PIP_CERT=/etc/ssl/host.crt"]
    for target in TARGETS:
        print(f"building fedanchor-{target}", flush=True)
        podman.podman(*words, "--target", target, "-t", f"fedanchor-{target}", str(REPOSITORY))


def check_image(podman: Engine, target: str) -> None:
    image = f"fedanchor-{target}"
    config = json.loads(podman.podman("image", "inspect", image))[0]
    expect(f"{image} runs as user {USER}", config["Config"]["User"].split(":")[0] == USER)
    expect(f"{image} has a health check", config.get("Healthcheck", {}).get("Test") == ["CMD", "health.py"])
    confined = ["run", "--rm", "--network", "none", "--read-only", "--entrypoint"]
    version = podman.podman(*confined, "fedanchor", image, "--version").strip()
    expect(f"it contains {version}", version.startswith("fedanchor "))
    expect("its health check fails where nothing runs", podman.run(*confined, "health.py", image).returncode != 0)


# The fleet.


def name_of(service: str) -> str:
    return f"fedanchor_{service}_1"


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST
    while not condition():
        if time.monotonic() > end:
            raise ImagesError(f"timed out after {LONGEST} s: {what}")
        time.sleep(1)
    print(f"ok: {what}", flush=True)


def check_container(podman: Engine, service: str) -> None:
    """What the container may do, as its processes see it."""
    def inside(*words: str) -> "subprocess.CompletedProcess[str]":
        return podman.run("exec", name_of(service), *words)

    users = set(inside("sh", "-c", "grep -h ^Uid: /proc/[0-9]*/status").stdout.splitlines())
    expect(f"all processes of {service} are of user {USER}", users == {"Uid:" + f"\t{USER}" * 4})
    status = inside("grep", "-E", "^(CapBnd|NoNewPrivs):", "/proc/1/status").stdout.split()
    expect(f"{service} can have no privileges", status == ["CapBnd:", "0" * 16, "NoNewPrivs:", "1"])
    written = inside("touch", "/home/fedanchor/file")
    expect(f"its root file system is read-only ({written.stderr.strip()})", "Read-only file system" in written.stderr)
    # An address of the documentation range: where there is no route, it is refused at once.
    script = "import socket; socket.create_connection(('192.0.2.1', 80), 3)"
    expect(f"{service} has no way out of its network", "unreachable" in inside("python", "-c", script).stderr)


def run_fleet(podman: Engine) -> None:
    podman.compose("up", "-d")
    for service in SERVICES:
        wait_for(f"{service} is healthy", lambda: podman.run("healthcheck", "run", name_of(service)).returncode == 0)
        check_container(podman, service)
    start = time.monotonic()
    print("starting the run", flush=True)
    podman.podman("exec", name_of("coordinator"), "flwr", "run", "/opt/fedanchor/app", "fleet")
    status = podman.podman("wait", name_of("coordinator")).strip()
    log = podman.run("logs", name_of("coordinator"))
    expect(f"the coordinator ends with status {status}", status == "0")
    expect("the run of Flower is finished:completed", '"finished:completed"' in log.stdout)
    print(f"{ROUNDS} rounds in {time.monotonic() - start:.0f} s; now the simulation of the same clients", flush=True)


def check_restart(podman: Engine, service: str) -> None:
    """A container whose programs are killed is started again."""
    podman.run("exec", name_of(service), "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)")
    count = ["inspect", "--format", "{{.RestartCount}}", name_of(service)]
    wait_for(f"{service} is started again", lambda: podman.podman(*count).strip() == "1")
    wait_for(f"{service} is healthy again", lambda: podman.run("healthcheck", "run", name_of(service)).returncode == 0)


def digest(text: str) -> str:
    return text.split()[0]


def check_model(podman: Engine) -> None:
    confined = ["run", "--rm", "--network", "none", "--read-only", "--entrypoint", "sh", "-v", "fedanchor_runs:/runs:ro"]
    read = "sha256sum /runs/digits/model.safetensors; cat /runs/digits/rounds.jsonl"
    fleet, *records = podman.podman(*confined, "fedanchor-coordinator", "-c", read).splitlines()
    rounds = [json.loads(record)["round"] for record in records]
    expect(f"the fleet has recorded rounds {rounds}", rounds == list(range(ROUNDS + 1)))  # 0 is the pre-training
    experiment = f"{REPOSITORY}/flower/container/experiment.toml:/experiment.toml:ro"
    simulate = "fedanchor -q data example /tmp/all --clients 3 && fedanchor -q run /experiment.toml --set data.path=/tmp/all"
    simulate += " --out /tmp/simulated && sha256sum /tmp/simulated/model.safetensors"
    simulated = podman.podman(*confined, "-v", experiment, "fedanchor-coordinator", "-c", simulate)
    expect("the fleet's model equals that of the simulation, byte for byte", digest(fleet) == digest(simulated.splitlines()[-1]))


def newest_archive() -> Path:
    archives = list((REPOSITORY / "target" / "dist").glob(f"fedanchor-*-{platform.machine()}-*.tar.gz"))
    if not archives:
        raise ImagesError("target/dist has no archive for this processor: run `make dist`")
    return max(archives, key=lambda path: path.stat().st_mtime)


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the container images, and runs a fleet in them.")
    parser.add_argument("archive", type=Path, nargs="?", help="an archive in target/dist; default: the newest")
    parser.add_argument("--base", help="an image with Python, instead of one made of Debian's packages")
    parser.add_argument("--keep", action="store_true", help="keep the images")
    options = parser.parse_args()
    # Containers outlive this process unless it ends them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: terminated"))
    try:
        archive = options.archive or newest_archive()
        with engine(options.keep) as podman:
            base = options.base
            if base is None:
                base = "localhost/fedanchor-base"
                podman.podman("import", str(make_base()), base)
            print(f"containers run with {podman.choose_runtime(base)}", flush=True)
            build(podman, base, archive)
            for target in TARGETS:
                check_image(podman, target)
            try:
                run_fleet(podman)
                check_model(podman)
                check_restart(podman, SERVICES[-1])
            except ImagesError:
                for service in SERVICES:
                    log = podman.run("logs", "--tail", "20", name_of(service))
                    print(f"--- {service}\n{log.stdout}{log.stderr}", file=sys.stderr)
                raise
    except (ImagesError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
