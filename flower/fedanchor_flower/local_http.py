"""HTTP/1.1 over a Unix socket, one connection per request."""

import http.client
import os
import socket
from typing import NamedTuple

# The kernel's limit on the address of a Unix socket, without the final zero.
_LONGEST_PATH = 107


class Unreachable(Exception):
    """No answer on the socket. `reason` is the message without the path."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason


class Answer(NamedTuple):
    """The answer of the server on the socket."""

    status: int
    body: bytes

    def text(self) -> str:
        """The beginning of the body, for messages."""
        return self.body[:500].decode(errors="replace").strip()


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def request(
    socket_path: str,
    method: str,
    target: str,
    body: bytes | None = None,
    *,
    content_type: str = "application/octet-stream",
    timeout: float | None = None,
) -> Answer:
    """Send one request and read the whole answer, whatever its status.

    `timeout` limits each wait for the server, not their sum. Raises Unreachable without a complete answer.
    """
    path = os.path.expanduser(socket_path)
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise Unreachable(path, f"more than {_LONGEST_PATH} bytes: choose a shorter path for the socket")
    connection = _UnixConnection(path, timeout)
    headers = {} if body is None else {"Content-Type": content_type}
    try:
        try:
            connection.request(method, target, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            # A server may refuse a body before it has read all of it, and its answer can still be read.
            if connection.sock is None:
                raise
        response = connection.getresponse()
        return Answer(response.status, response.read())
    except TimeoutError as error:
        raise Unreachable(path, f"no answer within {timeout:g} s") from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise Unreachable(path, f"nothing listens there ({error.strerror}): start the program, or correct the path") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(path, type(error).__name__ if isinstance(error, OSError) else str(error)) from error
    finally:
        connection.close()
