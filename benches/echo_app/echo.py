"""Bytes to every node and others back, as Flower's own examples do it; the seconds of each exchange go to a file."""

import os
import pathlib
import random
import time

from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server = ServerApp()
client = ClientApp()


def records(size: int) -> RecordDict:
    record = ArrayRecord()
    record["body"] = Array(dtype="uint8", shape=(size,), stype="bytes", data=os.urandom(size))
    return RecordDict({"body": record})


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    seconds = []
    for _ in range(int(config["exchanges"])):
        time.sleep(random.uniform(0, 3))  # nodes look for messages every 3 s
        content = records(int(config["bytes"]))
        messages = [Message(content, node, MessageType.QUERY) for node in grid.get_node_ids()]
        begin = time.monotonic()
        replies = list(grid.send_and_receive(messages))
        seconds.append(time.monotonic() - begin)
        if len(replies) != len(messages) or any(reply.has_error() for reply in replies):
            raise RuntimeError("a node did not answer")
    pathlib.Path(str(config["out"])).write_text("\n".join(map(str, seconds)))


@client.query()
def answer(message: Message, context: Context) -> Message:
    # Other bytes than those that came: Flower stores equal ones once.
    size = len(message.content.array_records["body"]["body"].data)
    return Message(records(size), reply_to=message)
