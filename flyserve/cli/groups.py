"""Groups of options: a command takes a dataclass as one parameter, and its help shows an option per field."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

R = TypeVar("R")


def grouped(command: Callable[..., R]) -> Callable[..., R]:
    """Return a command for typer in which each dataclass parameter is replaced by options.

    A parameter `Annotated[Kind, {"field": typer.Option(...)}]` becomes an option for each listed field. A
    dataclass without such a table becomes an option for each of its fields, which are annotated as typer's
    parameters are. When the command runs, it receives the dataclass itself.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: _options(hint) for name, hint in hints.items() if _dataclass_of(hint) is not None}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        own = parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += groups.get(name, [own])

    @wraps(command)
    def run(**values: Any) -> R:
        for name, options in groups.items():
            given = {option.name: values.pop(option.name) for option in options}
            kind: Any = _dataclass_of(hints[name])
            values[name] = kind(
                **{field: _frozen(value) for field, value in given.items() if value is not None}
            )
        return command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _repeatable(hint: Any) -> Any:
    """Return typer's type of an option that may repeat, for a tuple; any other type is left as it is."""
    return list[get_args(hint)[0]] if get_origin(hint) is tuple else hint  # type: ignore[misc]


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _dataclass_of(hint: Any) -> type | None:
    kind = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    return kind if isinstance(kind, type) and is_dataclass(kind) else None


def _options(hint: Any) -> list[inspect.Parameter]:
    """Return the options of a dataclass."""
    kind: Any = _dataclass_of(hint)
    own = get_type_hints(kind, include_extras=True)
    table: Mapping[str, Any] = hint.__metadata__[0] if hasattr(hint, "__metadata__") else {}
    annotations = {name: Annotated[_repeatable(own[name]), option] for name, option in table.items()} or own
    defaults = {each.name: None if each.default is MISSING else each.default for each in fields(kind)}
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation)
        for name, annotation in annotations.items()
    ]
