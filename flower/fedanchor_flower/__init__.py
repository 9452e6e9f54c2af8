"""Carries the messages of fedanchor over Flower.

Nothing here knows what the messages mean. The ServerApp asks `fedanchor coordinator` on a Unix socket what to send to which
node, the ClientApp hands that to `fedanchor node` on another Unix socket, and the answer goes the same way back.
"""

PROTOCOL = 1
"""Version of the conversation with the two sockets."""
