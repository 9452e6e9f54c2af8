"""Requests and replies as Flower's records.

The body is an Array of bytes, because Flower cuts arrays into chunks (20 MB in 1.22, 5 MiB since) and stores equal chunks
once: bodies may have any size, and one for many nodes is stored on the SuperLink once. A ConfigRecord would be one object.
"""

from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedanchor_flower import PROTOCOL

_FIELDS = "fedanchor"
_BODY = "body"
_NO_LIMIT = -1.0


class ForeignContent(Exception):
    """A message that does not come from this package."""


@dataclass
class Request:
    """A request for a node: POST `body` to `path` on its socket."""

    path: str
    timeout: float | None
    body: bytes


@dataclass
class Reply:
    """The answer from a node's socket, or why there is none."""

    status: int
    body: bytes
    error: str = ""


def request_to_records(request: Request) -> RecordDict:
    """The records of a message to a node."""
    # Records have no null.
    timeout = _NO_LIMIT if request.timeout is None else request.timeout
    fields = ConfigRecord({"protocol": PROTOCOL, "path": request.path, "timeout": timeout})
    return _with_body(fields, request.body)


def request_from_records(records: RecordDict) -> Request:
    """The inverse of `request_to_records`."""
    fields = _fields(records)
    timeout = _number(fields["timeout"])
    return Request(str(fields["path"]), None if timeout < 0 else timeout, _body(records))


def reply_to_records(reply: Reply) -> RecordDict:
    """The records of a message to the server."""
    fields = ConfigRecord({"protocol": PROTOCOL, "status": reply.status, "error": reply.error})
    return _with_body(fields, reply.body)


def reply_from_records(records: RecordDict) -> Reply:
    """The inverse of `reply_to_records`."""
    fields = _fields(records)
    return Reply(int(_number(fields["status"])), _body(records), str(fields["error"]))


def _with_body(fields: ConfigRecord, body: bytes) -> RecordDict:
    records = RecordDict({_FIELDS: fields})
    if body:  # Flower may not support an array without chunks
        record = ArrayRecord()
        record[_BODY] = Array(dtype="uint8", shape=(len(body),), stype="bytes", data=body)
        records[_BODY] = record
    return records


def _fields(records: RecordDict) -> ConfigRecord:
    fields = records.config_records.get(_FIELDS)
    if fields is None:
        raise ForeignContent("a message without the fields of fedanchor: another app answered")
    if fields["protocol"] != PROTOCOL:
        raise ForeignContent(
            f"expected protocol {PROTOCOL}, got {fields['protocol']!r}: install the same fedanchor-flower on server and nodes"
        )
    return fields


def _body(records: RecordDict) -> bytes:
    record = records.array_records.get(_BODY)
    return b"" if record is None else record[_BODY].data


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise ForeignContent(f"expected a number, got {value!r}")
    return value
