"""The part of a `DrafterEngine` that one around another engine leaves to it."""

from services.engine.interface import DrafterEngine


class DrafterWrapper:
    """Base of an engine around another one; `info` and `open` are its own."""

    def __init__(self, engine: DrafterEngine) -> None:
        self._engine = engine
        self.index_budget, self.level_gains = engine.index_budget, engine.level_gains
        self.load, self.failure, self.stop = engine.load, engine.failure, engine.stop
