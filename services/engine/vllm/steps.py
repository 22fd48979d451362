"""Steps of vLLM's workers: what the runner sends to every one of them for a forward."""

from collections.abc import Sequence
from typing import NamedTuple

from services.engine.base import KvSlot
from services.engine.memory.paged_kv_cache import Block


class Row(NamedTuple):
    """One sequence's part of a step.

    Attributes:
        start: Position of the first of `tokens`; KV from there on is overwritten.
        num_outputs: Number of positions at the end of `tokens` whose logits are returned.
        table: All blocks of the sequence in order; None if they are those of its last step.
    """

    slot: KvSlot
    start: int
    tokens: Sequence[int]
    num_outputs: int
    table: tuple[Block, ...] | None

    @property
    def name(self) -> str:
        """Name of the sequence in vLLM."""
        return str(self.slot)

    @property
    def end(self) -> int:
        """Length of the sequence including `tokens`."""
        return self.start + len(self.tokens)


class Step(NamedTuple):
    """One step: first the sequences in `closed` end, then blocks are copied, then the rows are computed.

    Attributes:
        copies: Source and target of each copy; all are copied at once, so no target is a source.
    """

    rows: Sequence[Row] = ()
    closed: Sequence[KvSlot] = ()
    copies: Sequence[tuple[Block, Block]] = ()


class Layout(NamedTuple):
    """KV memory of a worker.

    Attributes:
        num_blocks: Blocks of the allocator.
        block_tokens: Token positions of one.
        plain_only: Reason why the model decodes plainly alone; see `ModelInfo`.
    """

    num_blocks: int
    block_tokens: int
    plain_only: str = ""
