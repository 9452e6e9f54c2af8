#!/bin/bash
# A node and its SuperNode, whose options are the arguments. The pictures are in /data, or in $PICTURES; $NAME is the
# client's name.
set -eu
trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT
trap 'exit 143' TERM INT

fedanchor node --data "${PICTURES:-/data}" --name "$NAME" --socket "$FEDANCHOR_SOCKET" --state /state &
flower-supernode --node-config "socket=\"$FEDANCHOR_SOCKET\"" "$@" &
wait -n
