"""Division of a batch that has more rows than a runner computes at once. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from services.engine.base import ForwardInput


def divide(batch: Sequence[ForwardInput], most_rows: int) -> Iterator[Sequence[ForwardInput]]:
    """Yield the batch, or parts of at most `most_rows` rows if it has more, as a long draft of one sequence.

    The output rows of the parts are those of the batch, in its order.
    """
    if sum(len(item.tokens) for item in batch) <= most_rows:
        yield batch
        return
    for item in batch:
        for first in range(0, len(item.tokens), most_rows):
            tokens = item.tokens[first : first + most_rows]
            outputs = max(0, min(len(tokens), first + len(tokens) - item.num_prefill))
            yield [replace(item, start=item.start + first, tokens=tokens, num_outputs=outputs)]
