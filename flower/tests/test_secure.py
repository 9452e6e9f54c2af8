"""The bridge over TLS with a key per node, as in production, and which node ids last.

Makes its certificates and keys with openssl and ssh-keygen, and is skipped where those are missing.
"""

import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness import HTTP, FakeCoordinator, Federation, UnixHttpServer, logs_on_error


@unittest.skipUnless(shutil.which("openssl") and shutil.which("ssh-keygen"), "needs openssl and ssh-keygen")
class SecureTest(unittest.TestCase):
    def setUp(self) -> None:
        self.federation = Federation()
        self.addCleanup(self.federation.close)
        self.coordinator = FakeCoordinator(self.federation.coordinator_socket)
        self.addCleanup(self.coordinator.stop)

    def test_tls_and_keys(self) -> None:
        self.federation.make_key("unknown")
        with logs_on_error(self.federation):
            self.federation.start_secure_superlink(["known"])
            unknown = self.federation.start_supernode("unknown", self.federation.key_options("unknown"))
            first, second = self.nodes_before_and_after_a_restart("known", self.federation.key_options("known"))
            self.assertEqual(first == second, HTTP, "a registered key keeps its node id, in former versions it does not")
            self.assertEqual(bool(first[1]), HTTP, "the key of a node is known, in former versions it is not")
            # The unknown node was never listed. In newer versions it exits, in older ones it keeps trying.
            if HTTP:
                self.assertNotEqual(unknown.wait(20), 0)

    def test_no_keys(self) -> None:
        with logs_on_error(self.federation):
            self.federation.start_superlink()
            first, second = self.nodes_before_and_after_a_restart("open", ("--insecure",))
            self.assertNotEqual(first[0], second[0], "without a key a node gets a new id each time")
            if HTTP:
                self.assertNotEqual(first[1], second[1], "and a key of its own making")

    def nodes_before_and_after_a_restart(self, name: str, security: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """The node's id and the fingerprint of its key."""
        server = UnixHttpServer(self.federation.node_socket(name), lambda method, target, body: (200, body))
        self.addCleanup(server.stop)
        supernode = self.federation.start_supernode(name, security)
        run = self.federation.run()
        (first,) = self.coordinator.wait_for_nodes(1)
        first_key = self.coordinator.keys.get(first, "")
        self.assertEqual(self.coordinator.send(first, "/", b"one").wait().body, b"one")
        # A node that is terminated is removed from the list at once.
        supernode.terminate()
        supernode.wait(20)
        self.coordinator.wait_for_nodes(0)
        self.federation.start_supernode(name, security)
        (second,) = self.coordinator.wait_for_nodes(1)
        self.assertEqual(self.coordinator.send(second, "/", b"two").wait().body, b"two")
        second_key = self.coordinator.keys.get(second, "")
        self.coordinator.finish()
        self.assertEqual(self.federation.wait_for_end(run), "finished:completed")
        return (first, first_key), (second, second_key)


if __name__ == "__main__":
    unittest.main()
