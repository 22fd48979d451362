"""Decode many sequences on an engine of any kind: `engine_story.py KEYS`, the keys of a target as JSON.

Thirty sequences, ten at once, in memory for about half of them, so that sequences wait, are preempted, and
reuse prefixes of others. Prints one JSON object: the tokens of every case, its entropies, and the load.
"""

import asyncio
import json
import random
import sys
from dataclasses import asdict
from typing import Any

from tokenizers import Tokenizer

from demo.tasks import load_tasks
from demo.tokenizer import render
from flyserve.core.messages import Open
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import SequenceMirror, TokenSequence
from flyserve.core.types import EntropyEstimator
from services.common.config import parse
from services.engine.base import Scores
from services.engine.engine import Engine
from services.engine.factory import build_engine
from services.target.config import TARGETS
from tests.support.processes import TARGET_MODEL

TOKENS, DRAFT, AT_ONCE = 24, 5, 10
CASES = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.9, top_p=0.95, seed=3),
    "processed": SamplingParams(
        temperature=0.7,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        logit_bias={17: 2.0, 40: -3.0},
        min_tokens=4,
        stop_token_ids=(2,),
        seed=5,
    ),
}
Ids = list[int]


def prompts() -> list[Ids]:
    """Return twenty prompts, and ten that begin as earlier ones."""
    tokenizer, chance = Tokenizer.from_file(str(TARGET_MODEL / "tokenizer.json")), random.Random(1)
    texts = [tokenizer.encode(render(task.prompt)).ids for task in load_tasks(20)]
    return texts + [[*text[: len(text) // 2], *chance.sample(range(20, 500), 5)] for text in texts[:10]]


def opening(prompt: Ids, sampling: SamplingParams) -> Open:
    estimator = EntropyEstimator.NORMALIZED if len(prompt) % 2 else EntropyEstimator.TOP_K
    return Open("r", len(prompt), sampling, cache_salt="s", entropy=estimator, num_logprobs=3)


async def decode(engine: Engine, prompt: Ids, sampling: SamplingParams) -> Scores:
    """Decode by one job."""
    known, mirror = TokenSequence(prompt), SequenceMirror()
    sequence = await engine.open(opening(prompt, sampling))
    sequence.apply(mirror.update(known, [], len(known)))
    scores: Scores = await engine.run(sequence.decode(TOKENS))
    engine.close(sequence)
    return scores


async def verify(engine: Engine, prompt: Ids, drafts: Ids, sampling: SamplingParams) -> Scores:
    """Decode the same by verifications of drafts, of which some are wrong."""
    known, mirror, parts = TokenSequence(prompt), SequenceMirror(), list[Scores]()
    sequence = await engine.open(opening(prompt, sampling))
    while (place := len(known) - len(prompt)) < len(drafts):
        proposal = drafts[place : place + DRAFT]
        sequence.apply(mirror.update(known, proposal, len(known)))
        scores: Scores = await engine.run(sequence.score(len(proposal) + 1))
        pairs = enumerate(zip(proposal, scores.choices, strict=False))
        right = next((index for index, pair in pairs if pair[0] != pair[1]), len(proposal))
        known.extend(scores.choices[: right + 1])
        parts.append(scores)
    engine.close(sequence)
    choices = tuple(known.ids[len(prompt) : len(prompt) + len(drafts)])
    return Scores(choices, tuple(entropy for part in parts for entropy in part.entropies), ())


async def run_all(engine: Engine) -> dict[str, Any]:
    """Return the tokens, entropies and log-probabilities of all cases, by decoding and by verifying."""
    await engine.start()
    texts, chance, found = prompts(), random.Random(2), dict[str, Any]()
    for name, sampling in CASES.items():
        plain = await asyncio.gather(*(decode(engine, text, sampling) for text in texts))
        drafts = [
            [t if chance.random() < 0.75 else chance.randrange(20, 500) for t in s.choices] for s in plain
        ]
        jobs = (verify(engine, text, each, sampling) for text, each in zip(texts, drafts, strict=True))
        verified = await asyncio.gather(*jobs)
        found[name] = {
            "tokens": [scores.choices for scores in plain],
            "verified": [scores.choices for scores in verified],
            "entropies": [scores.entropies for scores in (*plain, *verified)],
            "logprobs": [[asdict(each) for each in scores.logprobs] for scores in plain],
        }
    while engine.load().sequences:  # the engine's thread has not closed the last one yet
        await asyncio.sleep(0.01)
    found["load"] = engine.load()._asdict()
    await engine.stop()
    return found


def main() -> None:
    config = parse(TARGETS, json.loads(sys.argv[1]), "target")
    print(json.dumps(asyncio.run(run_all(build_engine(config)))))


if __name__ == "__main__":
    main()
