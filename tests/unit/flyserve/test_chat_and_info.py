import json

from rich.console import Console

from flyserve.cli.info import Status, view
from flyserve.cli.show import to_plain
from flyserve.core.messages import ModelInfo, Role
from flyserve.core.presets import PRESETS
from flyserve.core.request import DraftLength, SpeculationParams
from flyserve.core.response import DeploymentInfo
from flyserve.core.types import Mode
from tests.unit.flyserve.fake_generation import FakeGeneration, rejected_address, run


def test_every_line_of_a_pipe_is_a_turn(served: tuple[FakeGeneration, str]) -> None:
    service, address = served
    spoken = "hi\n\nand then?\n/new\nagain\n"
    result = run("chat", "--system", "be short", "--address", address, stdin=spoken)
    assert (result.exit_code, result.stdout) == (0, "the quick fox\n" * 3)
    assert "\x1b" not in result.output and result.stderr == ""
    first, second, third = service.conversations
    assert first == [("system", "be short"), ("user", "hi")]
    assert second == [*first, ("assistant", "the quick fox"), ("user", "and then?")]
    assert third == [("system", "be short"), ("user", "again")]
    assert [list(request.prompt_token_ids.ids) for request in service.requests] == [[2], [4], [2]]


def test_answers_as_json_and_options_are_passed_on(served: tuple[FakeGeneration, str]) -> None:
    service, address = served
    options = ("--json", "--mode", "exact", "--temperature", "0.5", "--max-new-tokens", "9")
    result = run("chat", *options, "--address", address, stdin="hi\nho\n")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["choices"][0]["text"] for answer in answers] == ["the quick fox"] * 2
    assert (service.requests[0].max_new_tokens, service.requests[0].sampling.temperature) == (9, 0.5)


def test_an_error_ends_a_piped_conversation(served: tuple[FakeGeneration, str]) -> None:
    result = run("chat", "--address", served[1], stdin="hi\nbad\nho\n")
    assert (result.stdout, result.exit_code) == ("the quick fox\n", 2)
    assert result.stderr == "error: request messages need a chat template\n"
    assert len(served[0].conversations) == 2


def test_info_shows_what_is_served(served: tuple[FakeGeneration, str]) -> None:
    result = run("info", "--address", served[1])
    assert result.exit_code == 0 and "\x1b" not in result.output
    head, target, drafter, default, limits = result.stdout.splitlines()
    assert head.startswith("FlyServe 0, answered in ")
    assert target == "target: big (row_invariant false, context unlimited, vocabulary 0, weights w1)"
    assert drafter.startswith("drafter: none at present")
    assert default == "by default: preset vllm"
    assert limits.startswith("at most: max new tokens 0")
    printed = json.loads(run("info", "--json", "--address", served[1]).stdout)
    assert printed["deployment"]["target"]["weight_fingerprint"] == "w1" and printed["answered_in_s"] > 0


def test_info_names_the_preset_and_only_what_differs_from_it() -> None:
    rule = to_plain(PRESETS["flyserve"])
    changes = {name: rule[name] for name in ("window", "carry_after", "guard_stops")}
    params = SpeculationParams(
        mode=Mode.FLY, preset="flyserve", draft_length=DraftLength(max=15), threshold=0.5, **changes
    )
    target = ModelInfo(Role.TARGET, "big", "w1", "big", "", 0, 0, "", shards=1, kv_capacity=1, version="0")
    served = DeploymentInfo(target=target, default_speculation=params, max_new_tokens_limit=4096)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(view(Status(served, 0.1)))
    assert "by default: mode fly, preset flyserve, draft length 15, threshold 0.5\n" in captured.get()
    assert "at most: max new tokens 4,096, " in captured.get()


def test_info_of_a_drafter_without_a_model_shows_no_model() -> None:
    def model(role: Role, name: str, weights: str = "", context: int = 0) -> ModelInfo:
        return ModelInfo(role, name, weights, name, "", 0, context, "", shards=1, kv_capacity=1, version="0")

    served = DeploymentInfo(
        target=model(Role.TARGET, "big", "w1"), drafter=model(Role.DRAFTER, "suffix", context=4096)
    )
    console = Console(width=200)
    with console.capture() as captured:
        console.print(view(Status(served, 0.1)))
    drafter = captured.get().splitlines()[2].rstrip()
    assert drafter == "drafter: suffix (looks tokens up, without a model, context 4,096 tokens)"


def test_info_of_nothing_is_one_line_with_the_remedy() -> None:
    result = run("info", "--retries", "0", "--address", rejected_address())
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1 and "start a deployment with: flyserve up" in result.stderr


def test_a_server_that_speaks_no_tls_is_not_one_to_start(served: tuple[FakeGeneration, str]) -> None:
    result = run("info", "--tls", "--retries", "0", "--address", served[1])
    assert result.exit_code == 3
    assert "check tls" in result.stderr and "flyserve up" not in result.stderr
