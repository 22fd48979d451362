"""Measure a target on vLLM in this process: `measure.py FOLDER`, with a model of a context of 16k tokens.

Prints one JSON object: the costs that the engine has measured, and by length of the sequence the most rows
that a round computes. A round scores 15 drafts, and one token is added after it.
"""

import asyncio
import json
import random
import sys
from dataclasses import asdict
from typing import Any

from fly.messages import Open, VerifyStep
from fly.sequence import SequenceMirror, TokenSequence
from services.engine.vllm.engine import VllmEngine, start_engine
from services.target.config import VllmTargetConfig
from services.target.vllm import VllmTarget

LENGTHS, ROUNDS, DRAFT = (2_000, 8_000), 40, 15
VOCAB_SIZE = 640


async def most_rows(engine: VllmEngine, length: int) -> int:
    """Return the most rows of a round, after the first one, which computes the prompt."""
    chance, mirror = random.Random(length), SequenceMirror()
    sequence, found = TokenSequence(chance.choices(range(VOCAB_SIZE), k=length)), []
    async with VllmTarget(engine).open(Open("measure", length)) as session:
        for number in range(ROUNDS + 1):
            drafts = chance.choices(range(VOCAB_SIZE), k=DRAFT if number else 0)
            update = mirror.update(sequence, drafts, len(sequence))
            answer = await session.step(VerifyStep(update, len(drafts)))
            sequence.extend(answer.choices[:1])
            found.append(answer.times.batch_tokens)
    return max(found[1:])


async def main() -> None:
    fields: dict[str, Any] = {"dtype": "float32", "max_sequences": 4}
    engine = await start_engine(VllmTargetConfig(model=sys.argv[1], **fields))
    try:
        assert engine.info.costs is not None
        rows = {str(length): await most_rows(engine, length) for length in LENGTHS}
        print(json.dumps({"costs": asdict(engine.info.costs), **rows}))
    finally:
        await engine.stop()


if __name__ == "__main__":
    asyncio.run(main())
