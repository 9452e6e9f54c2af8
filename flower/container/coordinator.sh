#!/bin/bash
# A coordinator and the SuperLink, whose options are the arguments. The experiment is /data/experiment.toml; the run folder is
# /runs/$RUN, and is resumed if it exists. `flwr run` starts the run.
set -eu
trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT
trap 'exit 143' TERM INT

if [ -e "/runs/$RUN/config.toml" ]; then
    run=(--resume "/runs/$RUN")
else
    run=(/data/experiment.toml --out "/runs/$RUN")
fi
fedanchor coordinator "${run[@]}" --socket "$FEDANCHOR_SOCKET" &
export FLWR_HOME=/runs/flower FEDANCHOR_COORDINATOR_SOCKET="$FEDANCHOR_SOCKET"
flower-superlink --host 0.0.0.0 --database /runs/flower.db --disable-runtime-dependency-installation "$@" &
wait -n
