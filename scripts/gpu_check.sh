#!/bin/sh
# Checks the cuda backend on this machine in less than 8 minutes and prints one JSON object on
# stdout; progress goes to stderr. Exit codes: 0 all held, 1 something did not, 2 the interpreter
# lacks what is needed, 3 there is no GPU.
#
#   scripts/gpu_check.sh [PYTHON]
#
# Needs an interpreter with the core's dependencies, by default that of .venv if it is there;
# Doppler itself need not be installed.
set -u
cd "$(dirname "$0")/.." || exit 2
if [ $# -gt 0 ]; then
    python=$1
elif [ -x .venv/bin/python ]; then
    python=.venv/bin/python
else
    python=python3
fi
if ! "$python" -c 'import filelock, numba, numpy, torch, torch_geometric' 2>/dev/null; then
    echo "error: $python lacks a dependency of Doppler; give another: scripts/gpu_check.sh PYTHON" >&2
    exit 2
fi
PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" exec timeout --signal=INT --kill-after=10 470 \
    "$python" scripts/gpu_check.py
