"""The demo pair in this process behind a router: real engines, which mask tokens."""

import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from flyserve.core.grammar import Grammar, GrammarKind
from flyserve.core.messages import Role
from router.config import RouterConfig
from router.server import create_host
from services.common.host import Host
from services.drafter import servicer as drafter_service
from services.drafter.sub_drafters import SubDrafters
from services.engine.config import Dtype, ModelConfig
from services.engine.engine import Engine
from services.engine.factory import build_engine
from services.target import servicer as target_service
from tests.support.processes import DRAFTER_MODEL, TARGET_MODEL
from tests.support.serving import serving

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def of_schema(schema: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def of_regex(regex: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, regex)


def of_lark(text: str) -> Grammar:
    return Grammar(GrammarKind.LARK, text)


class Replica(NamedTuple):
    """A running engine and its host."""

    engine: Engine
    host: Host


async def start_replica(role: Role, model: Path) -> Replica:
    """Start a replica of the demo pair."""
    config = ModelConfig(role=role, model=model, dtype=Dtype.FLOAT32, max_sequences=16, kv_tokens=8192)
    engine = build_engine(config)
    await engine.start()
    if role is Role.TARGET:
        return Replica(engine, target_service.host_engine(engine))
    return Replica(engine, drafter_service.host_engine(engine, SubDrafters(None), standalone_sequences=4))


def marked_target(folder: Path, markers: Sequence[str]) -> Path:
    """Return a copy of the demo target that has the markers as tokens, in place of reserved ones."""
    copy = folder / "marked"
    shutil.copytree(TARGET_MODEL, copy)
    content = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    vocab, flags = content["model"]["vocab"], ("single_word", "lstrip", "rstrip", "normalized", "special")
    for index, marker in enumerate(markers):
        token = {"id": vocab.pop(f"<|reserved_{index}|>"), "content": marker, **dict.fromkeys(flags, False)}
        content["added_tokens"].append(token)
    (copy / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return copy


@asynccontextmanager
async def serving_pair(
    num_targets: int = 1, has_drafter: bool = True, target_model: Path = TARGET_MODEL, **config: Any
) -> AsyncIterator[tuple[Host, Sequence[Replica]]]:
    """Serve the pair behind a router until the block ends; yield the router's host and the targets."""
    async with AsyncExitStack() as stack:
        targets = [await start_replica(Role.TARGET, target_model) for _ in range(num_targets)]
        addresses = [await stack.enter_async_context(serving(target.host)) for target in targets]
        drafters = [await start_replica(Role.DRAFTER, DRAFTER_MODEL)] if has_drafter else []
        helpers = [await stack.enter_async_context(serving(drafter.host)) for drafter in drafters]
        made = RouterConfig(
            model=target_model,
            grpc_port=0,
            targets=tuple(addresses),
            drafters=tuple(helpers),
            **{"draft_patience": 1e6, **config},
        )
        router = await create_host(made)
        await stack.enter_async_context(serving(router))
        yield router, targets
