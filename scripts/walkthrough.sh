#!/usr/bin/env bash
# From a folder of pictures to a model in use, in an empty directory, with `fedanchor` on the PATH:
#     bash walkthrough.sh [ROUNDS]
# ROUNDS shortens the run, for tests. Everything is written to the current directory.
set -euo pipefail
shopt -s inherit_errexit

if [ -n "$(ls -A)" ]; then
    echo "error: $PWD is not empty: start in a new directory" >&2
    exit 1
fi
say() { printf '\n$ %s\n' "$*"; "$@"; }

# 300 labelled pictures of five classes, 2,700 unlabelled ones, 500 to test on: stand-ins for your own.
say fedanchor data example pictures --labelled 60

# An experiment file for them, and the run.
say fedanchor init pictures --yes --out digits.toml
say fedanchor run digits.toml --out run ${1:+--set "rounds=$1" --set compare=false}

# How good is it, class by class?
say fedanchor eval run pictures/test

# What does it say about new pictures?
say fedanchor predict run pictures/test/three/00*.png
fedanchor predict run pictures/test --format csv > predictions.csv
fedanchor predict run pictures/test --json > predictions.jsonl

# Labels for a person to review (open labels/labels.html). Those that both heads are sure of are accepted here, and
# a second experiment starts with them.
say fedanchor label run pictures/unlabelled --out labels --page 50 --accept 0.3
say fedanchor init pictures --labels labels/labels.csv --yes --out reviewed.toml

# The model for other programs.
say fedanchor export run --out digits.onnx

wc -l predictions.csv predictions.jsonl labels/labels.csv
