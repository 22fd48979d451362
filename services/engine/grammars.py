"""Grammars of an engine's sequences: compiled in processes of their own before a sequence is admitted."""

import asyncio
import contextlib
import hashlib
from functools import partial
from pathlib import Path

from flyserve.core.errors import InvalidRequest, NotReady
from services.common.grammars.compilations import Compilations
from services.common.grammars.host import GrammarHost, TokenizerSource
from services.common.grammars.hosted import HostedGrammar
from services.common.grammars.library import GrammarError, GrammarLost
from services.common.grammars.limits import REPLICA_LIMITS


class EngineGrammars:
    """Compiles the grammars of a model's sequences; equal ones share a process."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """Compile for the tokenizer of a model's folder."""
        self._path = folder / "tokenizer.json"
        read = partial(self._path.read_text, encoding="utf-8")
        self._source = TokenizerSource(str(self._path), read, vocab_size)
        self._compilations = Compilations[HostedGrammar]()
        self._host: GrammarHost | None = None

    async def start(self) -> None:
        """Load the tokenizer in the process of grammars; sequences report it if it has a fault."""
        self._host = GrammarHost.join()
        if self._path.is_file():
            with contextlib.suppress(GrammarError):
                await asyncio.to_thread(self._host.load, self._source)

    async def compiled(self, form: str, tenant: str) -> HostedGrammar:
        """Return a grammar in the library's form, compiled; tenants take turns if there are many.

        Raises:
            InvalidRequest: Field `grammar` has a fault.
            Overloaded: Too many grammars wait to be compiled.
            NotReady: The process that compiles has ended.
        """
        if self._host is None:
            raise NotReady("the engine is not running")
        if not self._path.is_file():
            raise InvalidRequest.of("grammar", "cannot be used: the model folder has no tokenizer.json")
        key = hashlib.sha256(form.encode("utf-8", "surrogatepass")).digest()
        return await self._compilations.result(key, partial(self._compile, self._host, form), tenant)

    async def stop(self) -> None:
        """End the processes."""
        self._compilations.clear()
        host, self._host = self._host, None
        if host is not None:
            await asyncio.to_thread(host.leave)

    def _compile(self, host: GrammarHost, form: str) -> HostedGrammar:
        try:
            grammar = HostedGrammar(host, self._source, REPLICA_LIMITS)
            grammar.compile(form)
        except GrammarLost as error:
            raise NotReady(str(error)) from None
        except GrammarError as error:
            raise InvalidRequest.of("grammar", f"cannot be used: {error}") from None
        return grammar
