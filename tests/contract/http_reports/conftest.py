"""The demo target behind a router that renders tools, for reports about grammars."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.contract.grammar_rig import marked_target, serving_pair
from tests.contract.http_reports.message_rig import MARKERS, TOOLS_TEMPLATE
from tests.support.processes import TARGET_MODEL


@pytest_asyncio.fixture(scope="package", loop_scope="package", params=["spelled", "tokens"])
async def demo(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[httpx2.AsyncClient]:
    """Return a client of the demo target, without markers as tokens, and with them and reasoning."""
    folder = tmp_path_factory.mktemp("demo")
    template = folder / "tools.jinja"
    template.write_text(TOOLS_TEMPLATE, encoding="utf-8")
    if request.param == "tokens":
        model, reasoning = marked_target(folder, MARKERS), "auto"
    else:
        model, reasoning = TARGET_MODEL, "none"
    config: dict[str, Any] = {"model_name": "demo", "chat_template": template, "reasoning_parser": reasoning}
    async with (
        serving_pair(has_drafter=False, target_model=model, http_port=0, **config) as (router, _),
        httpx2.AsyncClient(base_url=router.addresses[1], timeout=240) as http,
    ):
        yield http
