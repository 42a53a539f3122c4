#!/bin/sh
# Checks the cuda backend on this machine in less than 8 minutes and prints one JSON object on
# stdout; progress goes to stderr. Exit codes: 0 all held, 1 something did not, 3 there is no GPU.
#
#   scripts/gpu_check.sh [PYTHON]
#
# Needs an interpreter with the core's dependencies; Doppler itself need not be installed.
set -u
cd "$(dirname "$0")/.." || exit 2
PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" exec timeout --signal=INT --kill-after=10 470 \
    "${1:-python3}" scripts/gpu_check.py
