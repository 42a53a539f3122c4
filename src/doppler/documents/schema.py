"""Schemas of documents, by pydantic: what is wrong is one line that names place and rule."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from doppler.errors import DopplerError, UnknownNameError
from doppler.messages import shown, shown_value

Model = TypeVar("Model", bound=BaseModel)

_WORDS = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "model_type": "must be a mapping",
    "string_type": "must be a text",
}
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class Strict(BaseModel):
    """Base of what a document holds: immutable, no unknown key, no silent conversion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    #: What a key is called in a message.
    noun: ClassVar[str] = "key"

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: Any) -> Any:
        if not isinstance(values, dict | cls):
            raise ValueError(f"must be a mapping with {', '.join(sorted(cls.model_fields))}")
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(UnknownNameError(cls.noun, shown(str(key)), cls.model_fields))
        return values


def check(schema: type[Model], value: object, where: str, error: type[DopplerError]) -> Model:
    """Return what a document holds, if it is as the schema says.

    Parameters
    ----------
    schema : type of pydantic.BaseModel
    value : object
        Parsed JSON or YAML.
    where : str
        The file, for the message.
    error : type of DopplerError
        Raised with the first fault.
    """
    try:
        return schema.model_validate(value, strict=True)
    except ValidationError as failure:
        raise error(f"{where}: {first_problem(failure)}") from None


def first_problem(error: ValidationError) -> str:
    """Say in one line what is wrong with the first value that is."""
    problem = error.errors(include_url=False)[0]
    value, loc = problem["input"], problem["loc"]
    of_key = loc[-1:] == ("[key]",)
    place = _path(loc[:-2] if of_key else loc)
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{place} is missing"
    if problem["type"] == "value_error":
        return f"{place}: {message}" if place else message
    # A rule of pydantic's own: "Input should be greater than 0", "List should have at least 1 ...".
    rule = re.sub(r"^\w+ should", "must", message.split(" after validation")[0])
    rule = _WORDS.get(problem["type"], rule)
    if problem["type"] == "float_type" and type(value) is int:
        rule += " of 64 bits"
    return f"{place or 'it'}{': a key' if of_key else ''} is {shown_value(value)}, {rule}"


def _path(parts: Iterable[str | int]) -> str:
    path = ""
    for part in parts:
        if isinstance(part, str) and _PLAIN_KEY.fullmatch(part):
            path += f".{part}" if path else part
        elif part != "":
            path += f"[{shown_value(part)}]"
    return path
