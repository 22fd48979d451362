"""Groups of options as dataclasses: a command takes a group as one parameter, its help shows every option."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar, get_type_hints

R = TypeVar("R")


def grouped(command: Callable[..., R]) -> Callable[..., R]:
    """A command for typer, with each parameter that is a dataclass spread into its fields.

    The fields of such a dataclass are annotated as typer's parameters are. When the command runs, it gets the
    dataclass itself.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {name: kind for name, kind in hints.items() if _is_group(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        own = parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += _spread(groups[name]) if name in groups else [own]

    @wraps(command)
    def run(**values: Any) -> R:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _is_group(kind: object) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


def _spread(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default
