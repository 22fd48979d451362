"""Load a model without importing torch's compiler and, for a whole model, its distributed tensors.

transformers and torch import both on the way, although no engine uses them: a third of a replica's start.
"""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_USED_PART = f"{_COMPILER}._trace_wrapped_higher_order_op"
"""The only part of the compiler that transformers imports by itself; it does not need the rest."""


@contextmanager
def light_start(is_whole: bool) -> Iterator[None]:
    """Import torch and transformers and load a model inside this block, the first of its process.

    With `is_whole` this process may load whole models only: transformers takes torch for a build without
    distributed tensors until the process ends.
    """
    was_collecting = gc.isenabled()
    gc.disable()  # thousands of modules are imported and none is garbage
    try:
        with _without_compiler():
            if is_whole:
                _without_distributed_tensors()
            yield
    finally:
        if was_collecting:
            gc.enable()


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Put a placeholder in place of the compiler, unless it is imported already."""
    if _COMPILER in sys.modules:
        yield
        return
    import torch

    placeholder = _Placeholder(_COMPILER)
    placeholder.__path__ = [f"{path}/_dynamo" for path in torch.__path__]
    sys.modules[_COMPILER] = placeholder
    try:
        importlib.import_module(_USED_PART)
        del placeholder.__path__
        yield
    finally:
        if sys.modules.get(_COMPILER) is placeholder:
            del sys.modules[_COMPILER]


class _Placeholder(ModuleType):
    """The compiler while nothing is compiled: its marks change nothing, all else imports the real one."""

    @staticmethod
    def disable(function: Any = None, recursive: bool = True, **options: Any) -> Any:
        return _unchanged if function is None else function

    @staticmethod
    def allow_in_graph(function: Any) -> Any:
        return function

    assume_constant_result = allow_in_graph

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
        return getattr(importlib.import_module(_COMPILER), name)


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _without_distributed_tensors() -> None:
    import torch

    is_available = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        from transformers.utils.import_utils import is_torch_distributed_available

        is_torch_distributed_available()  # it remembers its first answer
    finally:
        torch.distributed.is_available = is_available
