#!/usr/bin/env python3
"""Fails unless the socket of the node or the coordinator answers, and on the coordinator the port of the SuperLink.

The other programs need no check: a container ends when one of its programs does.
"""

import os
import socket

socket.socket(socket.AF_UNIX).connect(os.environ["FEDANCHOR_SOCKET"])
if port := os.environ.get("FEDANCHOR_SUPERLINK_PORT"):
    socket.create_connection(("127.0.0.1", int(port)), timeout=5)
