"""Tests of the bridge without a federation."""

import contextlib
import hashlib
import logging
import pathlib
import socket
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from collections.abc import Callable, Iterable
from types import SimpleNamespace

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from flwr.app import Error, Message
from harness import FakeCoordinator, Outcome, UnixHttpServer

from fedanchor_flower import bridge, client_app, envelope, local_http
from fedanchor_flower.bridge import Bridge, RunFailed
from fedanchor_flower.coordinator import Coordinator, CoordinatorError

# Newer versions of Flower create messages only inside a run.
with contextlib.suppress(ImportError):
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

logging.getLogger("flwr.fedanchor").setLevel(logging.CRITICAL)


# The answer of a node; None for no reply yet.
Answer = Callable[[int, envelope.Request], envelope.Reply | Error | None]


class FakeGrid:
    """Flower's Grid, with a function that answers for nodes."""

    def __init__(self, answer: Answer) -> None:
        self.nodes = [1, 2]
        self.answer = answer
        self.at_once = 0
        self.most_at_once = 0
        self._sent: dict[str, tuple[int, envelope.Request]] = {}
        self._lock = threading.Lock()

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            with self._lock:
                name = f"m{len(self._sent)}"
                self._sent[name] = (node, envelope.request_from_records(message.content))
            ids.append(name if node in self.nodes else "")
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for name in message_ids:
            with self._lock:
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
            answer = self.answer(*self._sent[name])
            with self._lock:
                self.at_once -= 1
            asked = Message(envelope.request_to_records(envelope.Request("/", None, b"")), 1, "query")
            if isinstance(answer, Error):
                replies.append(Message(answer, reply_to=asked))
            elif answer is not None:
                replies.append(Message(envelope.reply_to_records(answer), reply_to=asked))
        return replies


class WithFolder(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="fa-")))
        self.socket = self.folder / "s"

    def serve(self, respond: Callable[[str, str, bytes], tuple[int, bytes] | None]) -> None:
        server = UnixHttpServer(self.socket, respond)
        self.addCleanup(server.stop)


class BridgeTest(WithFolder):
    def setUp(self) -> None:
        super().setUp()
        self.coordinator = FakeCoordinator(self.socket)
        self.addCleanup(self.coordinator.stop)
        self.ended: Outcome = Outcome()

    def start(self, grid: FakeGrid, connect_timeout: float = 5.0) -> None:
        bridge = Bridge(grid, Coordinator(str(self.socket), connect_timeout))  # type: ignore[arg-type]

        def run() -> None:
            try:
                bridge.run()
            except Exception as error:
                self.ended.reason = f"{type(error).__name__}: {error}"
            self.ended.set()

        threading.Thread(target=run, daemon=True).start()

    def test_replies_and_failures(self) -> None:
        def answer(node: int, request: envelope.Request) -> envelope.Reply | Error:
            return Error(7, "went wrong") if node == 2 else envelope.Reply(201, request.path.encode() + request.body)

        self.start(FakeGrid(answer))
        good, bad, unknown = (self.coordinator.send(node, "/p", b"body") for node in ("1", "2", "3"))
        self.assertEqual((good.wait(5).status, good.body), (201, b"/pbody"))
        self.assertEqual(bad.wait(5).reason, "Flower error 7: went wrong")
        self.assertIn("the node has disconnected", unknown.wait(5).reason or "")
        self.coordinator.finish()
        self.assertIsNone(self.ended.wait(5).reason)

    def test_work_whose_answer_was_lost(self) -> None:
        self.coordinator.lose_work = True
        grid = FakeGrid(lambda node, request: envelope.Reply(200, request.body))
        self.start(grid)
        outcomes = [self.coordinator.send("1", "/", body) for body in (b"x", b"y")]
        self.assertEqual([outcome.wait(10).body for outcome in outcomes], [b"x", b"y"])
        self.assertFalse(self.coordinator.lose_work)
        self.assertEqual(len(grid._sent), 2, "each is sent once")

    def test_orders_to_forget(self) -> None:
        self.start(FakeGrid(lambda *_: None))
        outcomes = [self.coordinator.send("1", "/", b"", timeout=None) for _ in range(2)]
        self.coordinator.wait_for(lambda: self.coordinator.holds == [1, 2])
        self.coordinator.forget = [1, 77]
        self.coordinator.wait_for(lambda: self.coordinator.holds == [2])
        self.assertFalse(any(outcome.there for outcome in outcomes), "nobody is told")

    def test_unreachable_node(self) -> None:
        self.start(FakeGrid(lambda *_: envelope.Reply(0, b"", "fedanchor node: nothing \x1b listens")))
        outcome = self.coordinator.send("1", "/", b"").wait(5)
        self.assertEqual((outcome.status, outcome.body), (502, "fedanchor node: nothing \ufffd listens".encode()))

    def test_keys_of_nodes(self) -> None:
        class GridWithKeys(FakeGrid):
            def get_nodes(self) -> list[SimpleNamespace]:
                return [SimpleNamespace(node_id=1, public_key=b"a key"), SimpleNamespace(node_id=2, public_key=b"")]

        self.start(FakeGrid(lambda *_: None))
        self.coordinator.wait_for(lambda: self.coordinator.nodes == ["1", "2"])
        self.assertEqual(self.coordinator.keys, {}, "Flower before 1.38 does not give them")
        self.coordinator.finish()
        self.ended.wait(5)
        self.coordinator.begin()
        self.start(GridWithKeys(lambda *_: None))
        self.coordinator.wait_for(lambda: bool(self.coordinator.keys))
        self.assertEqual(self.coordinator.keys, {"1": hashlib.sha256(b"a key").hexdigest()})

    def test_failed_run(self) -> None:
        self.start(FakeGrid(lambda *_: None))
        self.coordinator.finish(ok=False, message="no quorum")
        self.assertEqual(self.ended.wait(5).reason, f"{RunFailed.__name__}: no quorum")

    def test_timeout_and_absence(self) -> None:
        grid = FakeGrid(lambda *_: None)
        self.start(grid)
        late, gone = self.coordinator.send("1", "/", b"", timeout=1.0), self.coordinator.send("2", "/", b"", timeout=None)
        self.assertEqual(late.wait(5).reason, "no answer within 1 s")
        grid.nodes.remove(2)
        self.assertIn("disconnected from Flower", gone.wait(10).reason or "")

    def node_1_hangs(self) -> tuple[threading.Event, Answer]:
        """An event that releases it, and nodes that answer with their request."""
        release = threading.Event()
        self.addCleanup(release.set)

        def answer(node: int, request: envelope.Request) -> envelope.Reply:
            if node == 1:
                release.wait(30)
            return envelope.Reply(200, request.body)

        return release, answer

    def test_refused_replies(self) -> None:
        self.coordinator.refuse_replies = True
        self.start(FakeGrid(lambda node, request: envelope.Reply(200, request.body)))
        refused = self.coordinator.send("1", "/", b"x")
        self.assertEqual(refused.wait(5).reason, "the coordinator refused its reply with 507: no space left")

    def test_stalled_pulls_without_a_timeout(self) -> None:
        release, answer = self.node_1_hangs()
        self.enterContext(unittest.mock.patch.object(bridge, "_STALLED", 0.5))
        self.start(FakeGrid(answer))
        stuck = [self.coordinator.send("1", "/", b"late", timeout=None) for _ in range(10)]
        # All slots are taken, and released although the calls do not return.
        self.assertEqual(self.coordinator.send("2", "/", b"x", timeout=None).wait(20).body, b"x")
        self.assertFalse(any(outcome.there for outcome in stuck))
        release.set()
        for outcome in stuck:
            self.assertEqual(outcome.wait(20).body, b"late")

    def test_pulls_that_never_end(self) -> None:
        _, answer = self.node_1_hangs()
        for name in ("_STALLED", "_LONGEST_TRANSFER"):
            self.enterContext(unittest.mock.patch.object(bridge, name, 0.5))
        self.start(FakeGrid(answer))
        stuck = self.coordinator.send("1", "/", b"", timeout=None)
        self.assertEqual(stuck.wait(10).reason, "Flower did not transfer the message within 0.5 s")

    def test_replaced_by_a_later_app(self) -> None:
        self.coordinator.stop()
        server = UnixHttpServer(self.socket, lambda *_: (409, b"a later ServerApp works for this coordinator now"))
        self.start(FakeGrid(lambda *_: None))
        self.assertIn("409: a later ServerApp", self.ended.wait(5).reason or "")
        server.stop()
        self.coordinator.restart()

    def test_hanging_pulls_hold_up_nobody(self) -> None:
        release, answer = self.node_1_hangs()
        grid = FakeGrid(answer)
        self.start(grid)
        # More calls that do not return than slots, so that all are taken.
        stuck = [self.coordinator.send("1", "/", b"", timeout=1.0) for _ in range(10)]
        for outcome in stuck:
            self.assertEqual(outcome.wait(10).reason, "no answer within 1 s")
        self.assertEqual(self.coordinator.send("2", "/", b"x").wait(5).body, b"x")
        release.set()
        self.assertEqual(self.coordinator.send("1", "/", b"y").wait(5).body, b"y")

    def test_bodies_in_memory(self) -> None:
        def answer(node: int, request: envelope.Request) -> envelope.Reply:
            time.sleep(0.02)
            return envelope.Reply(200, request.body)

        grid = FakeGrid(answer)
        self.start(grid)
        outcomes = [self.coordinator.send("1", "/", b"%d" % number) for number in range(40)]
        for number, outcome in enumerate(outcomes):
            self.assertEqual(outcome.wait(10).body, b"%d" % number)
        self.assertLessEqual(grid.most_at_once, 4)

    def test_same_number_after_a_restart(self) -> None:
        release = threading.Event()

        def answer(node: int, request: envelope.Request) -> envelope.Reply | None:
            return envelope.Reply(200, request.body) if request.body == b"new" or release.is_set() else None

        self.start(FakeGrid(answer))
        self.coordinator.send("1", "/", b"old")
        time.sleep(0.5)
        self.coordinator.stop()
        self.coordinator._next = 1
        self.coordinator.restart()
        self.assertEqual(self.coordinator.send("1", "/", b"new").wait(5).body, b"new")
        release.set()
        time.sleep(1.2)
        self.assertEqual(self.coordinator.refused, 0, "the old reply must not be handed over under the new number")

    def test_no_coordinator(self) -> None:
        self.coordinator.stop()
        self.start(FakeGrid(lambda *_: None), connect_timeout=1.0)
        self.assertRegex(
            self.ended.wait(5).reason or "", f"{CoordinatorError.__name__}: no coordinator for 1 s: .*: nothing listens"
        )
        self.coordinator.restart()

    def test_unreadable_answer(self) -> None:
        self.coordinator.stop()
        for status, body in ((200, b"[]"), (200, b"no json"), (200, b'{"state": "rest"}'), (400, b"unknown protocol")):
            with self.subTest(body=body):
                server = UnixHttpServer(self.socket, lambda *_, answer=(status, body): answer)
                with self.assertRaises(CoordinatorError) as caught:
                    Coordinator(str(self.socket), 1.0).work({}, [])
                self.assertIn("/v1/work", str(caught.exception))
                server.stop()
        self.coordinator.restart()


class ClientTest(WithFolder):
    def test_answers_pass_unchanged(self) -> None:
        self.serve(lambda method, target, body: (418, f"{method} {target} ".encode() + body))
        reply = client_app.ask_node(str(self.socket), envelope.Request("/v1/x?y=1", 5.0, b"body"))
        self.assertEqual(reply, envelope.Reply(418, b"POST /v1/x?y=1 body"))

    def test_errors_say_what_to_do(self) -> None:
        request = envelope.Request("/", 0.2, b"")
        self.assertIn("--node-config", client_app.ask_node("", request).error)
        self.assertIn("nothing listens there", client_app.ask_node(str(self.socket), request).error)
        self.assertIn("choose a shorter path", client_app.ask_node(f"/{'x' * 200}", request).error)
        self.serve(lambda *_: time.sleep(0.5))
        self.assertIn("no answer within 0.2 s", client_app.ask_node(str(self.socket), request).error)
        reply = client_app.ask_node(str(self.socket), envelope.Request("/", 5.0, b""))
        self.assertTrue(reply.error.startswith("fedanchor node: "), reply)
        self.assertNotIn(str(self.folder), reply.error, "paths of this machine do not leave it")

    def test_answer_before_the_body_was_read(self) -> None:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(str(self.socket))
            listener.listen()

            def refuse() -> None:
                connection, _ = listener.accept()
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
                connection.close()

            threading.Thread(target=refuse, daemon=True).start()
            answer = local_http.request(str(self.socket), "POST", "/", bytes(10_000_000), timeout=5.0)
        self.assertEqual(answer, local_http.Answer(413, b"big"))


if __name__ == "__main__":
    unittest.main()
