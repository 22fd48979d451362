"""Requests made from the served OpenAPI document, valid and invalid: no answer that it does not describe."""

import asyncio
import json
import re
import sys
from pathlib import Path

from tests.contract.http_rig import serving_http

LEAST_CASES = 500
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)


async def test_hundreds_of_requests_find_no_fault_of_the_servers(tmp_path: Path) -> None:
    limits = {"max_new_tokens": 8, "default_new_tokens": 4}
    async with serving_http(tmp_path, limits=limits) as rig:
        document = (await rig.http.get("/openapi.json")).json()
        for name in ("CompletionRequest", "ChatRequest", "ResponsesRequest"):
            # A timeout of a microsecond passes, and its status is as much a 5xx as a fault's.
            del document["components"]["schemas"][name]["properties"]["timeout"]
        path = tmp_path / "openapi.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        found = await schemathesis(path, rig.url)
        assert not rig.target.num_open
    cases = re.search(r"(\d+) generated", found)
    assert cases is not None and int(cases[1]) >= LEAST_CASES, found


async def schemathesis(document: Path, url: str) -> str:
    """Return the summary line of a run without failures."""
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", str(document), "--url", url),
        *(
            "--checks",
            ",".join(CHECKS),
            "--phases",
            "coverage,fuzzing",
            "--max-examples",
            "24",
            "--seed",
            "1",
        ),
        *("--no-shrink", "--suppress-health-check", "all"),
        cwd=document.parent,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await run.communicate()
    finally:
        if run.returncode is None:
            run.kill()
            await run.wait()
    assert run.returncode == 0, said.decode()
    return said.decode()
