"""The recording of a calibration: its file, its conditions, and what an error leaves of it."""

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flyserve.calibration.candidate import candidates
from flyserve.calibration.collect import Collector
from flyserve.calibration.recording import Pair, RecordedPrompt, Recording, load_recording
from flyserve.calibration.run import saved
from flyserve.core.errors import ConfigError, DeadlineExceeded, NotReady
from flyserve.core.messages import ModelInfo, Role
from flyserve.core.request import DraftLength, SpeculationParams
from flyserve.core.response import DeploymentInfo
from tests.unit.flyserve.calibration_rig import EVIDENCE, PAIR, OneWaits, TimedOut, calibration
from tests.unit.flyserve.fake_generation import rejected_address, run

MODEL = ModelInfo(Role.TARGET, "m", "w", "a", "t", 10, 10, "float32", 1, 1, "1")


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "pair.rec"
    recording = Recording(PAIR, {"a b": RecordedPrompt((1, 2), {7: EVIDENCE}, {9: "text\n"})})
    recording.save(path)
    assert load_recording(path, PAIR) == recording == load_recording(path, None)
    assert load_recording(tmp_path / "new", PAIR) == Recording(PAIR)
    assert os.listdir(path.parent) == ["pair.rec"]


@pytest.mark.parametrize("cut", [1, 40, 200, -1, -30])
def test_a_cut_recording_is_named_and_stays(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "pair.rec"
    Recording(PAIR, {text: RecordedPrompt((1,), {7: EVIDENCE}) for text in "ab"}).save(path)
    text = path.read_text()
    path.write_text(kept := text[:cut] if cut != -1 else text[: text.rindex('{"prompt"')])
    with pytest.raises(ConfigError, match=r"pair.rec is no whole recording"):
        load_recording(path, PAIR)
    assert path.read_text() == kept


@pytest.mark.parametrize("field, value", [("draft_length", "15"), ("context_length", None), ("target", 1)])
def test_a_recording_with_values_of_other_types_is_no_whole_one(
    tmp_path: Path, field: str, value: Any
) -> None:
    path = tmp_path / "pair.rec"
    Recording(replace(PAIR, **{field: value})).save(path)
    with pytest.raises(ConfigError, match=r"pair.rec is no whole recording"):
        load_recording(path, None)


@pytest.mark.parametrize(
    "field, value", [("target", "x"), ("drafter", "suffix"), ("drafter_kernels", "z"), ("token_map", "y")]
)
def test_a_recording_of_another_pair_is_named(tmp_path: Path, field: str, value: Any) -> None:
    path = tmp_path / "pair.rec"
    Recording(PAIR).save(path)
    with pytest.raises(ConfigError, match=f"was recorded with {field} .*, not with {value}"):
        load_recording(path, replace(PAIR, **{field: value}))


def test_a_deployment_without_a_drafter_has_no_pair() -> None:
    with pytest.raises(ConfigError, match="has no drafter at present"):
        Pair.of(DeploymentInfo(target=MODEL), 15)


@pytest.mark.parametrize("given, length", [(None, 7), (8, 8)])
def test_drafts_have_the_length_of_the_deployment_if_none_is_given(given: int | None, length: int) -> None:
    assert Pair.of(deployment(7), given).draft_length == length


def test_a_deployment_that_drafts_nothing_needs_a_length() -> None:
    with pytest.raises(ConfigError, match="drafts of 0 tokens by default: give --draft-length"):
        Pair.of(deployment(0), None)


def deployment(draft_length: int) -> DeploymentInfo:
    default = SpeculationParams(draft_length=DraftLength(draft_length))
    return DeploymentInfo(target=MODEL, drafter=MODEL, default_speculation=default)


def test_figures_of_another_draft_length_than_the_recorded_one_are_refused(tmp_path: Path) -> None:
    (prompts := tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}')
    Recording(PAIR).save(path := tmp_path / "pair.rec")
    given = ("calibrate", str(prompts), "--recording", str(path), "--offline")
    shown = run(*given, "--draft-length", "8").stderr
    assert "was recorded with draft_length 15, not with 8" in " ".join(shown.split())
    for allowed in ((), ("--draft-length", "15")):
        assert "lacks the prompt" in " ".join(run(*given, *allowed).stderr.split())


def test_an_error_saves_the_recording_without_a_wait_for_other_requests(tmp_path: Path) -> None:
    path, client = tmp_path / "pair.rec", OneWaits()
    recording = Recording(PAIR, {"a": RecordedPrompt((1,)), "b": RecordedPrompt((2,))})
    with pytest.raises(ConfigError, match="failed"), saved(recording, path, Console()):
        recording.prompts["a"].rounds[7] = EVIDENCE
        calibration(client, recording).run(candidates(), (), 1)
    assert not client.has_ended.is_set() and load_recording(path, PAIR) == recording
    client.released.set()
    assert client.has_ended.wait(240)


def test_a_recording_without_anything_new_is_not_written(tmp_path: Path) -> None:
    path, recording = tmp_path / "pair.rec", Recording(PAIR, {"a": RecordedPrompt((1,))})
    with saved(recording, path, Console()) as save:
        save()
        assert not path.exists()
        recording.prompts["a"].rounds[7] = EVIDENCE
        save()
        written = path.stat().st_ino
    assert load_recording(path, PAIR) == recording and path.stat().st_ino == written


def test_a_run_that_fails_shows_its_own_error_beside_that_of_the_recording(tmp_path: Path) -> None:
    shown, recording = io.StringIO(), Recording(PAIR)
    (tmp_path / "file").touch()
    kept = saved(recording, tmp_path / "file" / "pair.rec", Console(file=shown, width=300))
    with pytest.raises(ConfigError, match="its own"), kept:
        recording.prompts["a"] = RecordedPrompt((1,))
        raise ConfigError("its own")
    assert "pair.rec cannot be written" in shown.getvalue()


def test_two_calibrations_with_one_file_keep_what_both_have_recorded(tmp_path: Path) -> None:
    path, first, second = tmp_path / "pair.rec", Recording(PAIR), Recording(PAIR)
    with saved(first, path, Console()) as save_first, saved(second, path, Console()) as save_second:
        first.prompts["a"] = RecordedPrompt((1,), {7: EVIDENCE})
        save_first()
        second.prompts |= {"a": RecordedPrompt((1,), {8: EVIDENCE}), "b": RecordedPrompt((2,))}
        save_second()
        first.prompts["a"].texts[9] = "text"
    whole = {"a": RecordedPrompt((1,), {7: EVIDENCE, 8: EVIDENCE}, {9: "text"}), "b": RecordedPrompt((2,))}
    assert load_recording(path, PAIR) == Recording(PAIR, whole)


@pytest.mark.parametrize("is_updated", [False, True])
def test_what_may_be_of_other_weights_is_not_kept(tmp_path: Path, is_updated: bool) -> None:
    class Updated:
        def info(self, timeout_s: float) -> DeploymentInfo:
            assert timeout_s < 6, "a signal leaves no more time"
            if not is_updated:
                raise NotReady("nothing serves")
            return DeploymentInfo(target=MODEL)  # its drafter is away

    path, recording, shown = tmp_path / "pair.rec", Recording(PAIR), io.StringIO()
    check = Collector(Updated(), PAIR, 10).check_pair  # type: ignore[arg-type]
    kept = saved(recording, path, Console(file=shown, width=300), check)
    with pytest.raises(DeadlineExceeded), kept:
        recording.prompts["a"] = RecordedPrompt((1,))
        raise DeadlineExceeded("too late")
    assert path.exists() != is_updated
    assert ("the deployment has another target now, w in place of target" in shown.getvalue()) == is_updated


@pytest.mark.parametrize("option", ["--recording", "--chart"])
def test_a_file_that_cannot_be_written_is_named_before_any_work(tmp_path: Path, option: str) -> None:
    (prompts := tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}')
    shown = run("calibrate", str(prompts), option, str(prompts / "x"), "--address", rejected_address()).stderr
    assert "prompts.jsonl/x cannot be written" in " ".join(shown.split())


@pytest.mark.parametrize("option", ["--recording", "--chart"])
@pytest.mark.parametrize("is_linked", [False, True])
def test_no_output_is_written_over_an_input(tmp_path: Path, option: str, is_linked: bool) -> None:
    (prompts := tmp_path / "prompts.jsonl").write_text(text := '{"prompt": "a"}')
    (link := tmp_path / "link").symlink_to(prompts)
    output = str(link if is_linked else prompts)
    shown = run("calibrate", str(prompts), option, output, "--address", rejected_address()).stderr
    assert f"{option}: {output} is the file of PROMPTS, too: name another" in " ".join(shown.split())
    assert prompts.read_text() == text


@pytest.mark.parametrize("limit_s", [None, 700.0])
def test_requests_have_the_time_limit_of_the_command(limit_s: float | None) -> None:
    client: Any = TimedOut()
    collector, prompt = Collector(client, PAIR, 10, limit_s), RecordedPrompt((1,))
    with pytest.raises(DeadlineExceeded):
        collector.complete(prompt, candidates()[0])
    with pytest.raises(DeadlineExceeded):
        collector.text(prompt, (2,))
    assert client.limits_s == [limit_s] * 2
