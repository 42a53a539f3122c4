"""What all settings have in common: they cannot change, and none is unknown or out of range."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from doppler.documents.schema import Strict, first_problem
from doppler.errors import ParamsError, UnknownNameError

Seed = Annotated[int, Field(ge=0, lt=2**32)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


def name_of(what: str, known: Collection[str]) -> AfterValidator:
    """Accept names that are known alone: ``Annotated[str, name_of("method", METHODS)]``."""

    def validate(name: str) -> str:
        if name not in known:
            raise ValueError(UnknownNameError(what, name, known))
        return name

    return AfterValidator(validate)


class Settings(Strict):
    """Base of all settings: immutable, no unknown key, no silent conversion.

    A class of settings belongs to the module that goes by them. ``params.yaml`` nests them.

    Raises
    ------
    ParamsError
        If a value is unknown (the message names the nearest), missing, of the wrong type or out of
        range.
    """

    noun = "parameter"

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ParamsError(f"{type(self).__name__}: {first_problem(error)}") from None

    # Validation of a whole does not call it for the parts, so that the error names the way to them.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]
