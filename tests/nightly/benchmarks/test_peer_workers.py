"""Every peer on a tiny pair: the same tokens, and an end of its process."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.aligned_pair.folders import PairFolders, ensure_pair
from benchmarks.aligned_pair.recipe import PairRecipe, Shape
from benchmarks.harness.worker import worker
from benchmarks.scenarios.peers.llama_cpp import llama_cpp
from benchmarks.scenarios.peers.plan import NGRAMS
from benchmarks.scenarios.peers.published_loop import PublishedLoop
from benchmarks.scenarios.peers.transformers_peer import TransformersPeer
from flyserve.core.errors import NotReady
from tests.support.gguf_files import gguf_of
from tests.support.tiny_models import make_tiny

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


@pytest.mark.parametrize("num_tokens", [1, 2, 60])
def test_the_published_loop_decodes_what_both_models_choose(tmp_path: Path, num_tokens: int) -> None:
    torch.set_num_threads(1)
    agreeing = ensure_pair(replace(RECIPE, noise=0.0, branch=0.0), tmp_path)
    answer = PublishedLoop(agreeing.target, agreeing.drafter, "float32").decode(PROMPT, num_tokens)
    assert answer.tokens == plain_tokens(agreeing, num_tokens)
    assert num_tokens < 60 or (answer.tau is not None and answer.tau > 10)


def test_a_worker_answers_what_its_peer_does_and_reports_the_cause_of_a_failure(folders: PairFolders) -> None:
    models = folders.target, folders.drafter, "float32"
    with worker(TransformersPeer, *models, "assisted") as started:
        assert started.ask("decode", PROMPT, 20).tokens == plain_tokens(folders, 20)
        with pytest.raises(NotReady, match="AttributeError"):
            started.ask("sing")
    with ExitStack() as stack, pytest.raises(NotReady, match="failed: OSError: "):
        stack.enter_context(worker(PublishedLoop, Path("nowhere"), folders.drafter, "float32"))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_worker_has_its_threads(folders: PairFolders, threads: int) -> None:
    with worker(ThreadCount, folders.target, threads=threads) as started:
        assert started.ask("count") == threads


class ThreadCount:
    """A model's process, asked for its threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def count(self) -> int:
        return torch.get_num_threads()


def test_llama_cpp_decodes_alike_with_each_of_its_look_ups(tmp_path: Path) -> None:
    file = gguf_of(make_tiny("llama"), tmp_path / "llama.gguf")
    prompt, found = [*range(5, 10)] * 4, list[tuple[int, ...]]()
    for ngram in ("", *NGRAMS):
        with llama_cpp(file, 1, ngram, ()) as peer:
            found.append(peer.decode(prompt, 20).tokens)
    assert len(found[0]) == 20 and found[1:] == found[:1] * len(NGRAMS)


def test_a_file_that_llama_cpp_cannot_read_is_an_error(tmp_path: Path) -> None:
    ended = pytest.raises(NotReady, match=r"llama_server.py (ended before it was ready|failed)")
    with ended, llama_cpp(tmp_path / "none.gguf", 1, "", ()):
        pass
