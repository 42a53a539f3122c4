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
    "float_type": "must be a number that fits in 64 bits",
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
    *parents, last = problem["loc"] or ("",)
    place = _path(parents) if last == "[key]" else _path([*parents, last])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{place} is missing"
    if problem["type"] == "value_error":
        return f"{place}: {message}" if place else message
    # A rule of pydantic's own: "Input should be greater than 0", "List should have at least 1 ...".
    rule = re.sub(r"^\w+ should", "must", message.split(" after validation")[0])
    what = "a key" if last == "[key]" else "it" if not place else ""
    subject = f"{place}: {what}" if place and what else place or what
    return f"{subject} is {shown_value(problem['input'])}, {_WORDS.get(problem['type'], rule)}"


def _path(parts: Iterable[str | int]) -> str:
    path = ""
    for part in parts:
        if isinstance(part, str) and _PLAIN_KEY.fullmatch(part):
            path += f".{part}" if path else part
        elif part != "":
            path += f"[{shown_value(part)}]"
    return path
