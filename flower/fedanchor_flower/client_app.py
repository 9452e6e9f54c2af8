"""The ClientApp: from a Flower message to the node's socket and back.

Flower starts a new process for every message, so no state is kept here; model, data and device belong to `fedanchor node`.
"""

import logging
import os

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedanchor_flower import envelope, local_http

# A child of Flower's logger, which writes to the SuperNode's log.
logger = logging.getLogger("flwr.fedanchor")

app = ClientApp()


@app.query()
def pass_on(message: Message, context: Context) -> Message:
    """Pass the message's body to the node and return its answer."""
    request = envelope.request_from_records(message.content)
    # Frees one of two copies of the body while the node works.
    message.content.clear()
    reply = ask_node(str(context.node_config.get("socket", "")), request)
    return Message(envelope.reply_to_records(reply), reply_to=message)


def ask_node(socket: str, request: envelope.Request) -> envelope.Reply:
    """The node's answer, or a reply with an error where there is none."""
    socket = socket or os.environ.get("FEDANCHOR_NODE_SOCKET", "")
    if not socket:
        advice = "start flower-supernode with --node-config 'socket=\"/path/to/node.sock\"'"
        return envelope.Reply(0, b"", f"the path of the node's socket is missing: {advice}")
    try:
        status, body = local_http.request(socket, "POST", request.path, request.body, timeout=request.timeout)
    except local_http.Unreachable as error:
        logger.warning("fedanchor node: %s", error)
        # Without the path, which must not leave this machine.
        return envelope.Reply(0, b"", f"fedanchor node: {error.reason}")
    return envelope.Reply(status, body)
