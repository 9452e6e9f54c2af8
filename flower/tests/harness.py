"""A real federation of Flower on this machine, with stand-ins for the two programs behind the sockets.

Every process has the temporary folder in its environment, by which `Federation.survivors` finds those that are left.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import pathlib
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

APP = pathlib.Path(__file__).resolve().parent.parent
VERSION = tuple(int(part) for part in metadata.version("flwr").split(".")[:2])
# Since 1.40 one HTTP port serves everything; earlier versions have several gRPC servers and other options.
HTTP = VERSION >= (1, 40)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


class UnixHttpServer:
    """An HTTP server on a Unix socket: `respond(method, target, body)` gives status and body, or None to hang up."""

    def __init__(self, path: pathlib.Path, respond: Callable[[str, str, bytes], tuple[int, bytes] | None]) -> None:
        self.path = path

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                answer = respond(self.command, self.path, self.rfile.read(length))
                self.close_connection = True
                if answer is not None:
                    status, body = answer
                    with contextlib.suppress(OSError):  # the client may be gone
                        self.send_response(status)
                        self.send_header("Content-Length", str(len(body)))
                        self.end_headers()
                        self.wfile.write(body)

            do_GET = do_POST = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        path.unlink(missing_ok=True)
        self._server = _Server(str(path), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.path.unlink(missing_ok=True)


class Outcome:
    """The outcome of a request."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self.status: int | None = None
        self.body = b""
        self.reason: str | None = None
        self.start = time.monotonic()
        self.seconds = 0.0

    def set(self) -> None:
        self.seconds = time.monotonic() - self.start
        self._there.set()

    @property
    def there(self) -> bool:
        return self._there.is_set()

    def wait(self, timeout: float = 60.0) -> Outcome:
        if not self._there.wait(timeout):
            raise AssertionError(f"neither reply nor failure after {timeout} s")
        return self


class FakeCoordinator:
    """The coordinator's side of the protocol; tests decide what it sends."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._next = 1
        self._new: list[dict[str, Any]] = []
        self._given: list[dict[str, Any]] = []
        self._bodies: dict[int, bytes] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._end: tuple[bool, str] | None = None
        self.nodes: list[str] = []
        self.keys: dict[str, str] = {}
        self.refused = 0
        self.refuse_replies = False
        self.lose_work = False  # lose the next answer that contains orders
        self.forget: list[int] = []
        self.holds: list[int] = []
        self.restart()

    def restart(self) -> None:
        """Listen again, without earlier requests."""
        with self._changed:
            self._new, self._given, self._bodies, self._outcomes = [], [], {}, {}
        self._server = UnixHttpServer(self._path, self._respond)

    def stop(self) -> None:
        self._server.stop()

    def begin(self) -> None:
        """Forget the run before."""
        with self._changed:
            self._end, self.nodes = None, []

    def send(self, node: str, path: str, body: bytes, timeout: float | None = 60.0) -> Outcome:
        with self._changed:
            outcome, number = Outcome(), self._next
            self._next += 1
            self._bodies[number], self._outcomes[number] = body, outcome
            self._new.append({"id": number, "node": node, "path": path, "timeout": timeout})
            self._changed.notify_all()
            return outcome

    def finish(self, ok: bool = True, message: str = "") -> None:
        with self._changed:
            self._end = (ok, message)
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Wait until the bridge has reported something."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout):
                raise AssertionError(f"timed out after {timeout} s: nodes {self.nodes}, orders {self.holds}")

    def wait_for_nodes(self, number: int, timeout: float = 60.0) -> list[str]:
        self.wait_for(lambda: len(self.nodes) == number, timeout)
        return list(self.nodes)

    def _respond(self, method: str, target: str, body: bytes) -> tuple[int, bytes] | None:
        url = urllib.parse.urlparse(target)
        if (method, url.path) == ("POST", "/v1/work"):
            return self._work(json.loads(body))
        _, _, kind, text = url.path.split("/")
        number = int(text)
        with self._changed:
            if number not in self._outcomes:
                self.refused += 1
                return 410, b"no such request"
            if (method, kind) == ("GET", "requests"):
                return 200, self._bodies.pop(number)
            outcome = self._outcomes.pop(number)
        if kind == "replies" and self.refuse_replies:
            with self._changed:
                self._outcomes[number] = outcome
            return 507, b"no space left"
        if kind == "replies":
            outcome.status, outcome.body = int(urllib.parse.parse_qs(url.query)["status"][0]), body
        else:
            outcome.reason = json.loads(body)["reason"]
        outcome.set()
        return 204, b""

    def _work(self, question: dict[str, Any]) -> tuple[int, bytes] | None:
        if question["protocol"] != 1:
            return 400, b"unknown protocol"
        with self._changed:
            self.nodes, self.keys, self.holds = question["nodes"], question["keys"], question["holds"]
            open_ones = [order for order in self._given if order["id"] in self._outcomes]
            self._given = [order for order in open_ones if order["id"] in question["holds"]]
            self._new += [order for order in open_ones if order["id"] not in question["holds"]]
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._new or self._end is not None, 1.0)
            answer: dict[str, Any] = {"state": "wait", "requests": [], "ok": True, "message": ""}
            answer["forget"], self.forget = self.forget, []
            for number in answer["forget"]:
                self._outcomes.pop(number, None)  # nobody waits for it, and it is not sent again
            if self._new:
                answer["state"], answer["requests"] = "work", self._new
                self._given, self._new = self._given + self._new, []
                if self.lose_work:
                    self.lose_work = False
                    return None
            elif self._end is not None:
                answer["state"], (answer["ok"], answer["message"]) = "done", self._end
            return 200, json.dumps(answer).encode()


class Federation:
    """A SuperLink, SuperNodes and the command line, in a temporary folder, until it is closed."""

    def __init__(self) -> None:
        # A short name, as the path of a Unix socket is limited.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fa-"))
        self.coordinator_socket = self.folder / "c.sock"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._address = self._fleet = ""
        self._superlink: tuple[int, list[str], subprocess.Popen[bytes]] | None = None

    def environment(self, home: str) -> dict[str, str]:
        # A home for each, because two SuperNodes would install the app into the same folder at the same time.
        (self.folder / home).mkdir(exist_ok=True)
        return {
            **os.environ,
            "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.folder / home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a process in a new session, so that its children can be ended with it. Its output goes to a file."""
        with open(self.log(name), "ab") as log:
            process = subprocess.Popen(
                command, env=self.environment(name), cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)
        return process

    def log(self, name: str) -> pathlib.Path:
        return self.folder / f"{name}.log"

    def start_superlink(self, security: tuple[str, ...] = ("--insecure",), connection: str = "insecure = true") -> None:
        port = free_port()
        self._address = f"127.0.0.1:{port}"
        command = ["flower-superlink", *security]
        if HTTP:
            self._fleet = self._address
            command += ["--host", "127.0.0.1", "--port", str(port), "--disable-runtime-dependency-installation"]
        else:
            self._fleet = f"127.0.0.1:{free_port()}"
            command += ["--control-api-address", self._address, "--fleet-api-address", self._fleet]
            command += ["--serverappio-api-address", f"127.0.0.1:{free_port()}"]
        process = self.start("superlink", command)
        self._superlink = (port, command, process)
        self._write_connection(connection)
        wait_for_port(port, process)

    def restart_superlink(self) -> None:
        """Kill it and start it again, in the same place and with what it has on disk."""
        assert self._superlink is not None
        port, command, process = self._superlink
        self.kill(process)
        process = self.start("superlink", command)
        self._superlink = (port, command, process)
        wait_for_port(port, process)

    def _write_connection(self, lines: str) -> None:
        """Tell the command line where the SuperLink is: in its own file, or in the app's in former versions."""
        app = self.folder / "app"
        shutil.copytree(APP, app, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
        home = pathlib.Path(self.environment("cli")["FLWR_HOME"])
        if HTTP:
            text = f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{self._address}"\n{lines}\n'
            (home / "config.toml").write_text(text)
        else:
            text = f'\n[tool.flwr.federations.local]\naddress = "{self._address}"\n{lines}\n'
            (app / "pyproject.toml").write_text((APP / "pyproject.toml").read_text() + text)

    def start_secure_superlink(self, names: list[str]) -> None:
        """Start it with TLS and with keys of nodes, of which only these are known."""
        self.folder.joinpath("names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self.make("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test-ca -keyout ca.key -out ca.crt")
        self.make("openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr")
        self.make(
            "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.crt"
        )
        keys = [self.make_key(name) for name in names]
        security: tuple[str, ...] = ("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key")
        if HTTP:
            security += ("--enable-supernode-auth", "--database", "flower.db")
        else:
            self.folder.joinpath("keys.csv").write_text("".join(key.read_text() for key in keys))
            security += ("--auth-list-public-keys", "keys.csv")
        self.start_superlink(security, f'root-certificates = "{self.folder / "ca.crt"}"')
        for key in keys if HTTP else []:
            self.command_line("supernode", "register", str(key), "local")

    def make_key(self, name: str) -> pathlib.Path:
        """A key pair for a node; returns the public one."""
        self.make(f"ssh-keygen -q -t ecdsa -b 384 -N  -f {name}_key -C {name}")
        return self.folder / f"{name}_key.pub"

    def key_options(self, name: str) -> tuple[str, ...]:
        """The options of a SuperNode with a key."""
        options: tuple[str, ...] = ("--root-certificates", "ca.crt", "--auth-supernode-private-key", f"{name}_key")
        return options if HTTP else (*options, "--auth-supernode-public-key", f"{name}_key.pub")

    def make(self, command: str) -> None:
        subprocess.run(command.split(" "), cwd=self.folder, check=True, capture_output=True, timeout=60)

    def start_supernode(self, name: str, security: tuple[str, ...] = ("--insecure",)) -> subprocess.Popen[bytes]:
        port = free_port()
        command = ["flower-supernode", *security, "--superlink", self._fleet]
        command += ["--node-config", f'socket="{self.node_socket(name)}"']
        command += ["--port", str(port)] if HTTP else ["--clientappio-api-address", f"127.0.0.1:{port}"]
        return self.start(name, command)

    def node_socket(self, name: str) -> pathlib.Path:
        return self.folder / f"{name}.sock"

    def command_line(self, *arguments: str) -> str:
        """Run `flwr` and return its output."""
        command = ["flwr", *arguments]
        environment = self.environment("cli")
        done = subprocess.run(command, env=environment, cwd=self.folder / "app", capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def run(self, connect_timeout: float = 30.0) -> str:
        """Start the app from its folder; returns the run's id."""
        config = f'coordinator-socket="{self.coordinator_socket}" connect-timeout={connect_timeout}'
        answer = json.loads(self.command_line("run", ".", "local", "--run-config", config, "--format", "json"))
        return str(answer["run-id"])

    def status(self, run: str) -> str:
        """For example "running" or "finished:completed"."""
        where = ["list", "local"] if HTTP else ["ls", ".", "local"]
        answer = json.loads(self.command_line(*where, "--run-id", run, "--format", "json"))
        return str(answer["runs"][0]["status"])

    def run_log(self, run: str) -> str:
        return self.command_line("log", run, *([] if HTTP else ["."]), "local", "--show")

    def wait_for_end(self, run: str, timeout: float = 60.0) -> str:
        end = time.monotonic() + timeout
        while not (status := self.status(run)).startswith("finished"):
            if time.monotonic() > end:
                raise AssertionError(f"run {run} is {status} after {timeout} s")
        return status

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a process and its children at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def survivors(self) -> list[int]:
        """The processes that were started with the temporary folder in their environment."""
        mark = f"FLWR_HOME={self.folder}".encode()
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def close(self) -> list[int]:
        """End everything, remove the folder, and return the ids of processes that could not be ended."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            self.kill(process)
        # The ServerApp and the ClientApps are in the sessions above unless Flower starts them in others.
        for pid in self.survivors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 5
        while (left := self.survivors()) and time.monotonic() < end:
            time.sleep(0.1)
        shutil.rmtree(self.folder, ignore_errors=True)
        return left


_given: set[int] = set()


def free_port() -> int:
    """An unused port that was not returned before."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


def wait_for_port(port: int, process: subprocess.Popen[bytes], timeout: float = 60.0) -> None:
    end = time.monotonic() + timeout
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on port {port}; exit status {process.poll()}")


@contextlib.contextmanager
def logs_on_error(federation: Federation) -> Iterator[None]:
    """Print the ends of Flower's logs if something fails, since the folder is removed."""
    try:
        yield
    except BaseException:
        for path in sorted(federation.folder.glob("*.log")):
            print(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}", file=sys.stderr)
        raise


@contextlib.contextmanager
def taken_down() -> Iterator[Federation]:
    """A federation that is removed at the end, also after an error, Ctrl-C or SIGTERM. For the main thread."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def leave(number: int, _: object) -> None:
        # Once: a second signal, as `timeout` sends it, must not interrupt the removal.
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in numbers:
        signal.signal(number, leave)
    federation = Federation()
    try:
        with logs_on_error(federation):
            yield federation
    finally:
        if left := federation.close():
            sys.exit(f"error: could not be ended: processes {left}")
