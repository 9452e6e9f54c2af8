"""Carries the messages of fedanchor over Flower.

The messages are not interpreted here. The ServerApp polls `fedanchor coordinator` on a Unix socket for requests to nodes, the
ClientApp passes each to `fedanchor node` on another Unix socket, and the answer returns the same way.
"""

PROTOCOL = 1
"""Version of the protocol on the two sockets."""
