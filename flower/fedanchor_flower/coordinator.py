"""The protocol with `fedanchor coordinator`."""

import json
import logging
import secrets
import time
from dataclasses import dataclass
from typing import Any

from fedanchor_flower import PROTOCOL, local_http

# A child of Flower's logger, which `flwr log` shows.
logger = logging.getLogger("flwr.fedanchor")

# Seconds between two attempts to reach the coordinator.
_PAUSE = 0.5

# How long a coordinator may take to answer. It delays answers to /v1/work by about a second.
_LEAST_PATIENCE = 10.0

# The status of an expired request: its round is over, or the coordinator was restarted.
_GONE = 410

# The longest message of a node that is passed on, in characters.
_LONGEST_REASON = 300


def printable(words: str) -> str:
    """A message of a node for a log: shortened, and without control characters."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in words[:_LONGEST_REASON])


class CoordinatorError(Exception):
    """The coordinator cannot be reached, or its answer cannot be used."""


@dataclass(frozen=True)
class Order:
    """A request for a node."""

    id: int
    node: int
    path: str
    timeout: float | None


@dataclass(frozen=True)
class Work:
    """The coordinator's answer to a poll."""

    done: bool
    orders: list[Order]
    forget: list[int]  # orders whose replies are not needed
    ok: bool
    message: str


class Coordinator:
    """A client of the coordinator's socket; any thread may use it.

    As the coordinator may be restarted during a run, every request is repeated until it is answered, for up to
    `connect_timeout` seconds.
    """

    def __init__(self, socket_path: str, connect_timeout: float) -> None:
        self._socket = socket_path
        self._connect_timeout = connect_timeout
        self._patience = max(connect_timeout, _LEAST_PATIENCE)
        # Tells the coordinator that a new ServerApp has taken over, which has none of the last one's requests.
        self._session = secrets.token_hex(8)

    def work(self, nodes: dict[int, str], holds: list[int]) -> Work:
        """Report the connected nodes, with the fingerprints of their keys, and the orders under way, and get new work.

        An order that was lost on the way is handed out again, because it is not among those.
        """
        names = [str(node) for node in nodes]
        keys = {str(node): key for node, key in nodes.items() if key}
        question = {"protocol": PROTOCOL, "session": self._session, "nodes": names, "keys": keys, "holds": holds}
        answer = self._post_json("/v1/work", question)
        if answer.status != 200:
            raise CoordinatorError(f"the coordinator answered /v1/work with {answer.status}: {answer.text()}")
        try:
            return _parse_work(json.loads(answer.body))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CoordinatorError(
                f"the coordinator's answer to /v1/work cannot be read ({error!r}): "
                "install matching versions of fedanchor and fedanchor-flower"
            ) from error

    def body(self, order: Order) -> bytes | None:
        """The body for the node; None if the request has expired."""
        answer = self._request("GET", f"/v1/requests/{order.id}")
        if answer.status == 200:
            return answer.body
        if answer.status != _GONE:
            raise ValueError(f"the coordinator answered {answer.status} instead of the body: {answer.text()}")
        logger.warning("request %d: not sent, the coordinator said %d: %s", order.id, answer.status, answer.text())
        return None

    def reply(self, order: Order, status: int, body: bytes) -> None:
        """Deliver the node's answer."""
        answer = self._request("POST", f"/v1/replies/{order.id}?status={status}", body)
        self._note_refusal("reply", order, answer)
        if answer.status >= 400 and answer.status != _GONE:
            # Otherwise the round would wait for it.
            self.failure(order, f"the coordinator refused its reply with {answer.status}: {answer.text()}")

    def failure(self, order: Order, reason: str) -> None:
        """Report that the node will not answer."""
        reason = printable(reason)
        logger.warning("request %d: node %d failed: %s", order.id, order.node, reason)
        answer = self._post_json(f"/v1/failures/{order.id}", {"reason": reason})
        self._note_refusal("failure", order, answer)

    def _note_refusal(self, what: str, order: Order, answer: local_http.Answer) -> None:
        if answer.status >= 400:
            text = answer.text()
            logger.warning("request %d: the coordinator refused the %s: %d %s", order.id, what, answer.status, text)

    def _post_json(self, target: str, value: object) -> local_http.Answer:
        return self._request("POST", target, json.dumps(value).encode(), content_type="application/json")

    def _request(
        self, method: str, target: str, body: bytes | None = None, content_type: str = "application/octet-stream"
    ) -> local_http.Answer:
        start = time.monotonic()
        warned = False
        while True:
            try:
                return local_http.request(self._socket, method, target, body, content_type=content_type, timeout=self._patience)
            except local_http.Unreachable as error:
                if time.monotonic() - start + _PAUSE > self._connect_timeout:
                    raise CoordinatorError(
                        f"no coordinator for {self._connect_timeout:g} s: {error} "
                        "(start fedanchor coordinator, or set coordinator-socket or connect-timeout with --run-config)"
                    ) from error
                if not warned:
                    logger.warning("waiting for the coordinator: %s", error)
                    warned = True
            time.sleep(_PAUSE)


def _parse_work(value: dict[str, Any]) -> Work:
    state = value["state"]
    if state not in ("work", "wait", "done"):
        raise ValueError(f"unknown state {state!r}")
    orders = [_parse_order(item) for item in value.get("requests", [])]
    forget = [int(number) for number in value.get("forget", [])]
    return Work(state == "done", orders, forget, bool(value.get("ok", True)), str(value.get("message", "")))


def _parse_order(value: dict[str, Any]) -> Order:
    timeout = value.get("timeout")
    return Order(int(value["id"]), int(value["node"]), str(value["path"]), None if timeout is None else float(timeout))
