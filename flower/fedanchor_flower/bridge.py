"""The ServerApp's loop: sends the coordinator's orders as Flower messages, and returns replies and errors."""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedanchor_flower import envelope
from fedanchor_flower.coordinator import Coordinator, CoordinatorError, Order, logger, printable

# The status that stands for a node that its ClientApp cannot reach.
_UNREACHABLE = 502

# The number of bodies in memory at a time, independent of the number of nodes.
_SENT_AT_ONCE = 1
_RECEIVED_AT_ONCE = 3

# Seconds between two polls for a reply: a twentieth of the time since the message was sent, within these limits.
_SHORTEST_PAUSE = 0.2
_LONGEST_PAUSE = 1.0
# Polls per second for all nodes together, which limits the load on the SuperLink.
_POLLS_PER_SECOND = 50

# Added to the lifetime of a message, since the clocks of server and nodes may differ by as much.
_CLOCK_DIFFERENCE = 60.0

# How long a node must be missing from Flower's list before its order fails.
_ABSENCE = 5.0

# A transfer that takes longer than this, in seconds, no longer counts towards the bodies in memory.
_STALLED = 30.0
# A transfer that takes longer than this fails. Flower itself would wait for two hours.
_LONGEST_TRANSFER = 900.0

# The least time between two polls for work, in case the coordinator answers at once.
_LEAST_PAUSE = 0.2


class RunFailed(Exception):
    """The coordinator ended the run without success."""


def _connected(grid: Grid) -> dict[int, str]:
    """The connected nodes, with the fingerprints of their public keys; none before Flower 1.38."""
    if not hasattr(grid, "get_nodes"):
        return dict.fromkeys(grid.get_node_ids(), "")
    return {node.node_id: hashlib.sha256(node.public_key).hexdigest() if node.public_key else "" for node in grid.get_nodes()}


class _Exchange:
    """An order under way, until its reply or failure has been reported."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.start = time.monotonic()
        self.missing_since: float | None = None
        # Guarded by the bridge's lock.
        self.ended = False
        self.slots: threading.Semaphore | None = None  # the semaphore of which it holds a slot
        self.entered: float | None = None  # when the current transfer began


class Bridge:
    """Runs one thread per order.

    Flower's `pull_messages` blocks until a reply has arrived in full, up to two hours if a node dies while it sends. With a
    thread per order and one message per call, such a node does not block others.
    """

    def __init__(self, grid: Grid, coordinator: Coordinator) -> None:
        self._grid = grid
        self._coordinator = coordinator
        self._lock = threading.Lock()
        self._exchanges: dict[int, _Exchange] = {}
        # Exchanges whose end the coordinator does not know yet.
        self._held: set[_Exchange] = set()
        self._sending = threading.Semaphore(_SENT_AT_ONCE)
        self._receiving = threading.Semaphore(_RECEIVED_AT_ONCE)
        self._error: CoordinatorError | None = None

    def run(self) -> None:
        """Work until the coordinator is done. Raises RunFailed if the run has failed."""
        while True:
            asked = time.monotonic()
            nodes = _connected(self._grid)
            with self._lock:
                holds = sorted({exchange.order.id for exchange in self._held})
            work = self._coordinator.work(nodes, holds)
            if work.done:
                break
            for number in work.forget:
                self._forget(number)
            for order in work.orders:
                self._start(order)
            self._give_up_overdue(set(nodes))
            if self._error is not None:
                raise self._error
            if not work.orders:
                time.sleep(max(0.0, asked + _LEAST_PAUSE - time.monotonic()))
        with self._lock:
            # Replies are not needed after the end.
            for exchange in self._exchanges.values():
                exchange.ended = True
        if not work.ok:
            raise RunFailed(work.message or "the coordinator reported a failure without a reason")
        if work.message:
            logger.info("%s", work.message)

    def _start(self, order: Order) -> None:
        exchange = _Exchange(order)
        with self._lock:
            # A restarted coordinator may reuse numbers: the old request's reply does not belong to the new one.
            old = self._exchanges.get(order.id)
            if old is not None:
                logger.warning("request %d: replaced by a new one for node %d", order.id, order.node)
                self._abandon_locked(old)
            self._exchanges[order.id] = exchange
            self._held.add(exchange)
        # Daemon threads, since one that hangs inside Flower must not keep the run from ending.
        threading.Thread(target=self._carry_out, args=(exchange,), daemon=True, name=f"request {order.id}").start()

    def _carry_out(self, exchange: _Exchange) -> None:
        try:
            try:
                message_id = self._send(exchange)
                if message_id is not None:
                    self._receive(exchange, message_id)
            except CoordinatorError:
                raise
            except Exception as error:
                # Errors of Flower concern this message; if Flower itself is gone, the main thread will fail too.
                self._fail(exchange, f"{type(error).__name__}: {error}")
        except CoordinatorError as error:
            self._error = error
        finally:
            self._end(exchange)
            self._release(exchange)

    def _send(self, exchange: _Exchange) -> str | None:
        order = exchange.order
        with self._slot(exchange, self._sending):
            if exchange.ended:
                return None
            body = self._coordinator.body(order)
            if body is None:
                return None
            records = envelope.request_to_records(envelope.Request(order.path, order.timeout, body))
            ttl = None if order.timeout is None else order.timeout + _CLOCK_DIFFERENCE
            message = Message(records, order.node, MessageType.QUERY, ttl=ttl)
            exchange.entered = time.monotonic()
            ids = [message_id for message_id in self._grid.push_messages([message]) if message_id]
            exchange.entered = None
        if not ids:
            self._fail(exchange, "Flower did not accept the message: the node has disconnected, or the message was refused")
            return None
        return ids[0]

    def _receive(self, exchange: _Exchange, message_id: str) -> None:
        sent = time.monotonic()
        while True:
            pause = min(max((time.monotonic() - sent) / 20, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            time.sleep(max(pause, len(self._exchanges) / _POLLS_PER_SECOND))
            with self._slot(exchange, self._receiving):
                if exchange.ended:
                    return
                exchange.entered = time.monotonic()
                for message in self._grid.pull_messages([message_id]):
                    exchange.entered = None
                    self._hand_over(exchange, message)
                    return
                exchange.entered = None

    def _hand_over(self, exchange: _Exchange, message: Message) -> None:
        if message.has_error():
            self._fail(exchange, f"Flower error {message.error.code}: {message.error.reason or 'no reason given'}")
            return
        reply = envelope.reply_from_records(message.content)
        if self._end(exchange):
            if reply.error:
                logger.warning("request %d: node %d: %s", exchange.order.id, exchange.order.node, printable(reply.error))
                self._coordinator.reply(exchange.order, _UNREACHABLE, printable(reply.error).encode())
            else:
                self._coordinator.reply(exchange.order, reply.status, reply.body)

    def _give_up_overdue(self, nodes: set[int]) -> None:
        now = time.monotonic()
        with self._lock:
            exchanges = list(self._exchanges.values())
        for exchange in exchanges:
            timeout = exchange.order.timeout
            if exchange.order.node in nodes:
                exchange.missing_since = None
            elif exchange.missing_since is None:
                exchange.missing_since = now
            if timeout is not None and now - exchange.start > timeout:
                self._give_up(exchange, f"no answer within {timeout:g} s")
            elif exchange.missing_since is not None and now - exchange.missing_since > _ABSENCE:
                self._give_up(exchange, "the node has disconnected from Flower")
            elif (entered := exchange.entered) is not None and now - entered > _STALLED:
                if now - entered > _LONGEST_TRANSFER:
                    self._give_up(exchange, f"Flower did not transfer the message within {_LONGEST_TRANSFER:g} s")
                else:
                    with self._lock:
                        self._leave_locked(exchange)

    def _fail(self, exchange: _Exchange, reason: str) -> None:
        if self._end(exchange):
            self._coordinator.failure(exchange.order, reason)

    def _give_up(self, exchange: _Exchange, reason: str) -> None:
        with self._lock:
            first = self._abandon_locked(exchange)
        if first:
            self._coordinator.failure(exchange.order, reason)
            self._release(exchange)

    def _forget(self, number: int) -> None:
        """End an exchange whose reply is not needed; its thread notices at its next poll."""
        with self._lock:
            exchange = self._exchanges.get(number)
            if exchange is not None:
                self._abandon_locked(exchange)
                self._held.discard(exchange)

    def _release(self, exchange: _Exchange) -> None:
        with self._lock:
            self._held.discard(exchange)

    def _end(self, exchange: _Exchange) -> bool:
        with self._lock:
            return self._end_locked(exchange)

    def _end_locked(self, exchange: _Exchange) -> bool:
        """End the exchange; false if it had ended before. The caller reports to the coordinator."""
        if exchange.ended:
            return False
        exchange.ended = True
        if self._exchanges.get(exchange.order.id) is exchange:
            del self._exchanges[exchange.order.id]
        return True

    def _abandon_locked(self, exchange: _Exchange) -> bool:
        """End an exchange whose thread may hang inside Flower, and release its slot."""
        if not self._end_locked(exchange):
            return False
        self._leave_locked(exchange)
        return True

    @contextmanager
    def _slot(self, exchange: _Exchange, slots: threading.Semaphore) -> Iterator[None]:
        """Hold one of the slots for bodies in memory."""
        slots.acquire()
        with self._lock:
            exchange.slots = slots
        try:
            yield
        finally:
            with self._lock:
                self._leave_locked(exchange)

    def _leave_locked(self, exchange: _Exchange) -> None:
        if exchange.slots is not None:
            exchange.slots.release()
            exchange.slots = None
