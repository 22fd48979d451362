"""Every peer in its own process, on a tiny pair: the same tokens, and an end of the process."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from benchmarks.aligned_pair.folders import PairFolders, ensure_pair
from benchmarks.aligned_pair.recipe import PairRecipe, Shape
from benchmarks.harness.deployed import one_of_each
from benchmarks.harness.worker import Worker, worker
from benchmarks.scenarios.peers.in_process import InProcess
from benchmarks.scenarios.peers.measure import WAYS, Answer
from benchmarks.scenarios.peers.published_loop import PublishedLoop
from benchmarks.scenarios.peers.transformers_peer import TransformersPeer, VerificationRig
from fly.errors import NotReady

RECIPE = PairRecipe(
    target=Shape(64, 96, 2, 4, 2), drafter=Shape(32, 48, 1, 2, 1), vocab_size=256, context_length=512
)
PROMPT = tuple(range(3, 35))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> PairFolders:
    torch.set_num_threads(1)
    return ensure_pair(RECIPE, tmp_path_factory.mktemp("pair"))


def plain_tokens(folders: PairFolders, count: int) -> tuple[int, ...]:
    peer = TransformersPeer(folders.target, folders.drafter, "float32", "generate")
    return peer.decode(PROMPT, count).tokens


@pytest.mark.parametrize("method", ["assisted", "lookup"])
def test_transformers_methods_decode_alike(folders: PairFolders, method: str) -> None:
    peer = TransformersPeer(folders.target, folders.drafter, "float32", method)
    assert peer.decode(PROMPT, 40).tokens == plain_tokens(folders, 40)


def test_in_process_exact_is_plain_is_transformers_and_fly_drafts_longer(folders: PairFolders) -> None:
    peer = InProcess(folders.target, folders.drafter, "float32")
    answers = {method: peer.decode(method, PROMPT, 60) for method in ("plain", "exact", "fly")}
    expected = plain_tokens(folders, 60)
    assert answers["plain"].tokens == answers["exact"].tokens == expected
    assert answers["plain"].tau is None and len(answers["fly"].tokens) == 60
    exact, fly = answers["exact"].tau, answers["fly"].tau
    assert exact is not None and fly is not None and 1 < exact <= fly
    again = peer.decode("fly", PROMPT, 60)
    assert again.tokens == answers["fly"].tokens, "a response leaves nothing behind"
    assert 0 < peer.bandwidth()["weight_bytes"] < 1e6


@pytest.mark.parametrize("num_tokens", [1, 2, 60])
def test_the_published_loop_decodes_as_the_preset_official_in_the_engine(
    folders: PairFolders, num_tokens: int
) -> None:
    published = PublishedLoop(folders.target, folders.drafter, "float32").decode(PROMPT, num_tokens)
    engine = InProcess(folders.target, folders.drafter, "float32")
    assert published.tokens == engine.decode("fly", PROMPT, num_tokens, preset="official").tokens


def test_the_engine_alone_verifies_in_every_way(folders: PairFolders) -> None:
    rig = VerificationRig(folders.target, "float32")
    for _ in range(2):
        assert all(rig.seconds(way, 8) > 0 for way in WAYS)


@pytest.fixture(scope="module")
def in_process_worker(folders: PairFolders) -> Iterator[Worker]:
    with worker(InProcess, folders.target, folders.drafter, "float32") as started:
        yield started


def test_a_worker_answers_what_its_peer_does(folders: PairFolders, in_process_worker: Worker) -> None:
    answer = in_process_worker.ask("decode", "exact", PROMPT, 20)
    assert isinstance(answer, Answer) and answer.tokens == plain_tokens(folders, 20)
    assert "fused" in in_process_worker.ask("describe")["target"]


def test_a_worker_that_fails_reports_the_cause(folders: PairFolders, in_process_worker: Worker) -> None:
    with pytest.raises(NotReady, match="AttributeError"):
        in_process_worker.ask("sing")
    with ExitStack() as stack, pytest.raises(NotReady, match="nowhere"):
        stack.enter_context(worker(InProcess, Path("nowhere"), folders.drafter, "float32"))


def test_the_stack_is_one_replica_of_each_tier_in_one_type(folders: PairFolders) -> None:
    deployment = one_of_each(folders.target, folders.drafter, "float32", 16, 15)
    assert deployment.drafter is not None and deployment.sub_drafter is not None
    for tier in (deployment.target, deployment.drafter):
        assert (tier.replicas, tier.threads, tier.dtype.value) == (1, 1, "float32")
    assert deployment.router.grpc_port == 0


def test_a_target_alone_decodes_plainly(folders: PairFolders) -> None:
    peer = InProcess(folders.target, None, "float32")
    assert peer.decode("plain", PROMPT, 20).tokens == plain_tokens(folders, 20)
    assert set(peer.describe()) == {"target"}
    deployment = one_of_each(folders.target, None, "float32", 16, 15)
    assert deployment.drafter is not None and deployment.drafter.engine == "suffix"
    assert deployment.sub_drafter is None
