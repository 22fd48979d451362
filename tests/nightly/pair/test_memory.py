"""With real weights: the memory of a service does not grow with the number of served requests."""

from concurrent.futures import ThreadPoolExecutor

import psutil

from demo.tasks import load_tasks
from demo.tokenizer import render
from flyserve import Client
from tests.support.processes import Deployment, demo_deployment

EARLY, LATE = 200, 600
NEW_TOKENS = 4
MOST_GROWTH = 1.05
KV_TOKENS = 3072
"""So few that the early requests have filled them: what is cached is within the budget.

They have also made the largest batches and buffers, which on a busy machine 50 requests had not.
"""


def test_600_requests_take_no_more_memory_than_200() -> None:
    prompts = [render(task.prompt) for task in load_tasks(300)]
    with (
        demo_deployment(kv_tokens=KV_TOKENS) as deployment,
        Client(deployment.router.address) as client,
        ThreadPoolExecutor(8) as pool,
    ):

        def respond(number: int) -> None:
            client.generate(prompts[number % len(prompts)], NEW_TOKENS)

        list(pool.map(respond, range(EARLY)))
        early = resident_bytes(deployment)
        list(pool.map(respond, range(EARLY, LATE)))
        late = resident_bytes(deployment)
    growth = {name: late[name] / early[name] for name in early}
    assert all(ratio <= MOST_GROWTH for ratio in growth.values()), growth


def resident_bytes(deployment: Deployment) -> dict[str, int]:
    """Return the memory of every service process."""
    services = {
        "target": deployment.targets[0],
        "drafter": deployment.drafter,
        "sub-drafter": deployment.sub_drafter,
        "router": deployment.router,
    }
    return {name: psutil.Process(each.process.pid).memory_info().rss for name, each in services.items()}
