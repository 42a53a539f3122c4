"""Files of tensors: safetensors, with a JSON header that says what they are."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from doppler.errors import CheckpointError
from doppler.files import read_bytes, write_atomic
from doppler.messages import shown_value

Arrays = dict[str, npt.NDArray[Any]]

# Under which key of the metadata, whose values are text, the header stands.
_KEY = "doppler"
# What a safetensors file begins with: the length of its own header.
_LENGTH = struct.Struct("<Q")


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, npt.NDArray[Any]], header: Mapping[str, Any]
) -> Path:
    """Write tensors and a header, whole or not at all.

    Parameters
    ----------
    path : path-like
    tensors : mapping of str to array
    header : mapping
        JSON-able; ``format`` and ``version`` say what the file is.
    """
    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    return write_atomic(path, save(arrays, {_KEY: json.dumps(header)}))


def read_tensors(
    path: str | os.PathLike[str],
    what: str,
    file_format: str,
    version: int | None = None,
    *,
    fix: str,
) -> tuple[dict[str, Any], Arrays]:
    """Read what :func:`write_tensors` wrote, once, so also from a pipe.

    Parameters
    ----------
    path : path-like
    what : str
        What the file should be, for messages (``"policy"``).
    file_format : str
        That its header must name.
    version : int, optional
        The only one that this Doppler reads; None if the header names none.
    fix : str
        What to do about a file that is at fault, for messages.

    Returns
    -------
    header : dict
    tensors : dict of str to array
        Arrays of their own, which may be changed.

    Raises
    ------
    CheckpointError
        If the file is missing, corrupt, or of another format or version.
    """
    try:
        content = read_bytes(path)
        (length,) = _LENGTH.unpack_from(content)
        tensors = {name: np.array(array) for name, array in load(content).items()}
        text = json.loads(content[8 : 8 + length]).get("__metadata__", {}).get(_KEY, "")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such {what} file; {fix}") from None
    except IsADirectoryError:
        raise CheckpointError(f"{path}: is a directory, not a {what} file; {fix}") from None
    except (
        *(SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError),
        *(struct.error, OverflowError, RecursionError, MemoryError),
    ):
        raise CheckpointError(f"{path}: corrupt, or not a {what} file; {fix}") from None
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != file_format:
        raise CheckpointError(f"{path}: a safetensors file, but not a {what} of Doppler; {fix}")
    if version is not None and header.get("version") != version:
        raise CheckpointError(
            f"{path}: {what} version {shown_value(header.get('version'))}, this Doppler reads "
            f"{version}; {fix}"
        )
    return header, tensors
