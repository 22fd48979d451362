"""A load test by another hand: locust's users all at once, more of them than there are places."""

import asyncio
import json
import sys
from pathlib import Path

from tests.contract.http_rig import serving_http

USERS = Path(__file__).with_name("locust_users.py")


async def test_many_users_are_each_told_their_own_answer(tmp_path: Path) -> None:
    async with serving_http(tmp_path, max_concurrent=4, max_queued=16) as rig:
        run = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "locust", "-f", str(USERS), "--host", rig.url, "--headless"),
            *("--users", "12", "--spawn-rate", "12", "--run-time", "600s", "--stop-timeout", "60", "--json"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, errors = await run.communicate()
        finally:
            if run.returncode is None:
                run.kill()
                await run.wait()
        assert run.returncode == 0, errors.decode()
        assert not rig.target.num_open and not rig.drafter.num_open
    counted = {kind["name"]: (kind["num_requests"], kind["num_failures"]) for kind in json.loads(output)}
    assert set(counted) == {"whole", "streamed"}
    assert all(requests > 20 and not failures for requests, failures in counted.values()), counted
