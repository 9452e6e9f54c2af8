#!/bin/bash
# A coordinator and the SuperLink, whose options are the arguments. The experiment is /data/experiment.toml; the run folder is
# /runs/$RUN, and is resumed if it exists. `flwr run /opt/fedanchor/app fleet` in this container starts the run.
set -eu
trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT
trap 'exit 143' TERM INT

# How `flwr` in this container reaches the SuperLink.
security='insecure = true'
for ((i = 1; i < $#; i++)); do
    next=$((i + 1))
    if [ "${!i}" = --ssl-ca-certfile ]; then security="root-certificates = \"${!next}\""; fi
done
mkdir -p "$FLWR_HOME"
printf '[superlink]\ndefault = "fleet"\n\n[superlink.fleet]\naddress = "127.0.0.1:%s"\n%s\n' \
    "$FEDANCHOR_SUPERLINK_PORT" "$security" > "$FLWR_HOME/config.toml"

if [ -e "/runs/$RUN/config.toml" ]; then
    run=(--resume "/runs/$RUN")
else
    run=(/data/experiment.toml --out "/runs/$RUN")
fi
fedanchor coordinator "${run[@]}" --socket "$FEDANCHOR_SOCKET" &
coordinator=$!
export FEDANCHOR_COORDINATOR_SOCKET="$FEDANCHOR_SOCKET"
flower-superlink --host 0.0.0.0 --port "$FEDANCHOR_SUPERLINK_PORT" --database /runs/flower.db \
    --disable-runtime-dependency-installation "$@" &

wait -n -p ended
# The run is done. Its ServerApp takes some seconds to tell the SuperLink, and `flwr run --stream` to read its log.
if [ "$ended" = "$coordinator" ]; then
    for _ in {1..20}; do
        status=$(flwr list fleet --format json | grep '"status":' || true)
        if [[ "$status" == *finished* && ! "$status" =~ pending|starting|running|stopping ]]; then break; fi
        sleep 1
    done
    echo "the last runs of Flower: ${status:-unknown}"
    sleep 3
fi
