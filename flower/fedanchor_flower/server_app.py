"""The ServerApp: see `bridge`."""

import os

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedanchor_flower.bridge import Bridge
from fedanchor_flower.coordinator import Coordinator

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry messages until the coordinator is done."""
    config = context.run_config
    socket = str(config.get("coordinator-socket", "")) or os.environ.get("FEDANCHOR_COORDINATOR_SOCKET", "")
    if not socket:
        raise ValueError(
            "the path of the coordinator's socket is missing: add --run-config 'coordinator-socket=\"/path/to/coordinator.sock\"'"
        )
    connect_timeout = float(config.get("connect-timeout", 60.0))
    if connect_timeout <= 0:
        raise ValueError(f"connect-timeout: expected a positive number of seconds, got {connect_timeout:g}")
    Bridge(grid, Coordinator(socket, connect_timeout)).run()
