"""The bridge on a real federation: python -m unittest discover -s tests -v

Needs nothing but flwr. Everything runs on loopback with free ports and in a temporary folder.
"""

import os
import pathlib
import subprocess
import sys
import threading
import time
import unittest
from typing import ClassVar

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import FakeCoordinator, Federation, UnixHttpServer, logs_on_error

LARGE = 45_000_000


class FakeNode:
    """A node whose answers depend on the path."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.busy = threading.Event()
        self.go_on = threading.Event()
        self.start()

    def start(self) -> None:
        self._server = UnixHttpServer(self._path, self._respond)

    def stop(self) -> None:
        self._server.stop()

    def _respond(self, method: str, target: str, body: bytes) -> tuple[int, bytes] | None:
        if method != "POST":
            return 405, b""
        if target == "/v1/echo?round=1":
            return 200, body[::-1]
        if target == "/v1/refuse":
            return 422, b"not like this: " + body
        if target == "/v1/hang-up":
            return None
        if target == "/v1/slow":
            self.busy.set()
            self.go_on.wait(60)
            return 200, b"late"
        return 404, target.encode()


class BridgeTest(unittest.TestCase):
    """One federation for all tests, since starting it takes long."""

    federation: ClassVar[Federation]
    coordinator: ClassVar[FakeCoordinator]
    nodes: ClassVar[list[FakeNode]]
    supernodes: ClassVar[list[subprocess.Popen[bytes]]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.federation = Federation()
        cls.addClassCleanup(cls.take_down)
        with logs_on_error(cls.federation):
            cls.coordinator = FakeCoordinator(cls.federation.coordinator_socket)
            cls.federation.start_superlink()
            cls.nodes = [FakeNode(cls.federation.node_socket(name)) for name in ("n0", "n1")]
            cls.supernodes = [cls.federation.start_supernode(name) for name in ("n0", "n1")]

    @classmethod
    def take_down(cls) -> None:
        for node in cls.nodes:
            node.go_on.set()
            node.stop()
        cls.coordinator.stop()
        left = cls.federation.close()
        if left:
            raise AssertionError(f"processes still there: {left}")

    def setUp(self) -> None:
        self.coordinator.begin()

    def test_1_messages(self) -> None:
        with logs_on_error(self.federation):
            run = self.federation.run()
            send = self.coordinator.send
            a, b = self.coordinator.wait_for_nodes(2)

            with self.subTest("bodies and status pass unchanged"):
                small = os.urandom(1000)
                there, refused = send(a, "/v1/echo?round=1", small), send(b, "/v1/refuse", small, timeout=None)
                self.assertEqual((there.wait().status, there.body), (200, small[::-1]))
                self.assertEqual((refused.wait().status, refused.body), (422, b"not like this: " + small))

            with self.subTest("large bodies"):
                large = [os.urandom(LARGE), os.urandom(LARGE)]
                outcomes = [send(node, "/v1/echo?round=1", body) for node, body in zip((a, b), large, strict=True)]
                for outcome, body in zip(outcomes, large, strict=True):
                    self.assertEqual(outcome.wait().status, 200, outcome.reason)
                    self.assertTrue(outcome.body == body[::-1])

            with self.subTest("empty bodies, and a node that hangs up"):
                empty, broken = send(a, "/v1/echo?round=1", b""), send(b, "/v1/hang-up", b"x")
                self.assertEqual((empty.wait().status, empty.body), (200, b""))
                self.assertEqual((broken.wait().status, broken.body[:15]), (502, b"fedanchor node:"))

            with self.subTest("a node that Flower does not know"):
                unknown = send("12345", "/v1/echo?round=1", b"x")
                self.assertIn("node", unknown.wait().reason or "")

            with self.subTest("a coordinator that is restarted, a slow node, a missing socket"):
                slow = send(a, "/v1/slow", b"")
                self.assertTrue(self.wait_for_either_busy())
                busy, other = (0, 1) if self.nodes[0].busy.is_set() else (1, 0)
                self.nodes[other].stop()
                missing = send(b, "/v1/echo?round=1", b"x")
                # It arrives although the other node is still busy.
                self.assertEqual(missing.wait().status, 502)
                self.assertIn(b"nothing listens there", missing.body)
                self.assertFalse(slow.there)
                self.nodes[other].start()

                self.coordinator.stop()
                time.sleep(1.5)
                self.coordinator.restart()
                again = send(b, "/v1/echo?round=1", b"again")
                self.assertEqual((again.wait().status, again.body), (200, b"niaga"))
                # The reply to the request before the restart is refused, and the run continues.
                refusals = self.coordinator.refused
                self.nodes[busy].go_on.set()
                last = send(a, "/v1/echo?round=1", b"last")
                self.assertEqual((last.wait().status, last.body), (200, b"tsal"))
                self.assertEqual(self.coordinator.refused, refusals + 1)
                self.assertFalse(slow.there)

            self.coordinator.finish(message="all done")
            self.assertEqual(self.federation.wait_for_end(run), "finished:completed")

    def test_2_no_coordinator(self) -> None:
        with logs_on_error(self.federation):
            self.coordinator.stop()
            try:
                run = self.federation.run(connect_timeout=1.0)
                self.assertEqual(self.federation.wait_for_end(run), "finished:failed")
            finally:
                self.coordinator.restart()

    def test_3_killed_node_and_failed_run(self) -> None:
        with logs_on_error(self.federation):
            run = self.federation.run()
            ids = self.coordinator.wait_for_nodes(2)
            for node in self.nodes:
                node.busy.clear()
                node.go_on.clear()
            # Long enough for the message to arrive, which takes Flower some seconds.
            killed = self.coordinator.send(ids[0], "/v1/slow", b"", timeout=12.0)
            self.assertTrue(self.wait_for_either_busy())
            self.federation.kill(self.supernodes[0 if self.nodes[0].busy.is_set() else 1])
            # Others are served in the meantime.
            alive = self.coordinator.send(ids[1], "/v1/echo?round=1", b"abc")
            self.assertEqual((alive.wait().status, alive.body), (200, b"cba"))
            self.assertEqual(killed.wait().reason, "no answer within 12 s")
            self.coordinator.finish(ok=False, message="not enough nodes")
            self.assertEqual(self.federation.wait_for_end(run), "finished:failed")
            self.assertIn("not enough nodes", self.federation.run_log(run))

    def wait_for_either_busy(self) -> bool:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if any(node.busy.wait(0.05) for node in self.nodes):
                return True
        return False


if __name__ == "__main__":
    unittest.main()
