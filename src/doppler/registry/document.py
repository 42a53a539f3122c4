"""Reading the files of a registry that Doppler itself wrote."""

from __future__ import annotations

from pathlib import Path

from doppler.documents.json_text import read_json
from doppler.documents.schema import Model, check
from doppler.errors import RegistryError
from doppler.messages import shown_value

RESTORE = "restore it with 'dvc pull --force'; 'doppler registry verify' tells what else is damaged"


def read_document(
    path: Path, what: str, schema: type[Model], file_format: str, version: int
) -> Model:
    """Read a JSON object that names its format and the version of that.

    Parameters
    ----------
    path : pathlib.Path
    what : str
        What the file is, for people.
    schema : type of pydantic.BaseModel
        What it holds.
    file_format : str
    version : int
        The only one that this Doppler reads.

    Raises
    ------
    RegistryError
        If the file cannot be read, is damaged, or of another format or version.
    """
    try:
        document = read_json(path, what, RegistryError)
    except RegistryError as error:
        raise RegistryError(f"{error}; {RESTORE}") from None
    if not isinstance(document, dict) or document.get("format") != file_format:
        raise RegistryError(f"{path}: is damaged; {RESTORE}")
    if document.get("version") != version:
        raise RegistryError(
            f"{path}: has format version {shown_value(document.get('version'))}, this Doppler "
            f"reads {version}"
        )
    try:
        return check(schema, document, f"{path}: is damaged", RegistryError)
    except RegistryError as error:
        raise RegistryError(f"{error}; {RESTORE}") from None
