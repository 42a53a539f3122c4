"""Validate the whole of params.yaml, before a stage that reads parts of it begins."""

from __future__ import annotations

import sys

from doppler.errors import DopplerError
from doppler.params import load_params

if __name__ == "__main__":
    try:
        load_params("params.yaml")
    except DopplerError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
