"""The order of an upgrade's steps, and the way back from a step that fails."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyserve.core.errors import ConfigError
from orchestration.release.commands import CommandFailed, JobFailed
from orchestration.release.values import Values
from tests.unit.orchestration.release_rig import DEFAULTS, MIXES, NEW, Rehearsed, run


@pytest.fixture(autouse=True)
def _chart_is_read_from_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_chart(chart: str) -> tuple[Any, str]:
        return yaml.safe_load((Path(chart) / "values.yaml").read_text()), "0.2.0"

    monkeypatch.setattr("orchestration.release.upgrade.read_chart", read_chart)


def test_the_old_cluster_goes_when_no_router_uses_it_any_more() -> None:
    release = Rehearsed()
    lines = run(release)
    assert release.calls == [
        "check",
        "upgrade blue green",
        *["jobs of green?"] * 2,
        "upgrade green blue",
        "jobs of green?",
        *["routers of green?"] * 3,
        "upgrade green",
    ]
    assert release.given[-1] == {**NEW, "ray": {"active": "green"}}
    assert lines[-1] == "done: set ray.active to green in your values"


def test_an_empty_tag_stays_that_of_the_chart_that_installed_it() -> None:
    release = Rehearsed()
    run(release, {})
    beside, swapped, alone = release.given
    assert beside["image"] == {"tag": "0.1.0"}
    assert beside["ray"]["standby"]["values"] == {"image": {"tag": "0.2.0"}}
    assert swapped["image"] == {"tag": "0.2.0"}
    assert swapped["ray"]["standby"]["values"] == {"image": {"tag": "0.1.0"}}
    assert alone == {"ray": {"active": "green"}}


def test_what_changes_no_running_pod_takes_one_step() -> None:
    release = Rehearsed(refusal="")
    release.applying["blue"] = 0
    run(release, {"router": {"max_queued": 5}})
    assert release.calls == ["check", "upgrade blue", "jobs of blue?", "routers ready?"]
    assert release.given == [{"router": {"max_queued": 5}, "ray": {"active": "blue"}}]


def test_running_pods_are_replaced_on_demand() -> None:
    release = Rehearsed(refusal="")
    run(release, {"pods": {"target": {"nodeSelector": {"pool": "a"}}}}, replace=True)
    upgrades = [call for call in release.calls if call.startswith("upgrade")]
    assert upgrades == ["upgrade blue green", "upgrade green blue", "upgrade green"]
    overlay = release.given[0]["ray"]["standby"]["values"]
    assert overlay["pods"] == {"target": {"nodeSelector": {"pool": "a"}}}


@pytest.mark.parametrize(
    ("fails", "way_back"),
    [
        ("upgrade blue green", ["rollback 3"]),
        ("upgrade green blue", ["rollback 4", "routers of blue?", "rollback 3"]),
    ],
)
def test_a_failed_step_returns_to_what_ran_and_drops_no_cluster_in_use(
    fails: str, way_back: list[str]
) -> None:
    release = Rehearsed(fails=fails)
    with pytest.raises(CommandFailed, match="timed out; revision 3 runs again"):
        run(release)
    assert release.calls[release.calls.index(fails) + 1 :] == way_back


def test_a_job_that_does_not_end_returns_to_what_ran() -> None:
    release = Rehearsed()
    release.applying["green"] = 1000
    with pytest.raises(CommandFailed, match="Job of green has not ended after 60 s: green-apply; revision 3"):
        run(release)
    assert release.calls[-2:] == ["jobs of green?", "rollback 3"]


def test_a_job_that_fails_ends_the_step_at_once() -> None:
    class Failing(Rehearsed):
        def unfinished_jobs(self, color: str, revision: int) -> list[str]:
            super().unfinished_jobs(color, revision)
            raise JobFailed("job/green-apply: BackoffLimitExceeded")

    release = Failing()
    with pytest.raises(CommandFailed, match="BackoffLimitExceeded; revision 3 runs again"):
        run(release)
    assert release.calls == ["check", "upgrade blue green", "jobs of green?", "rollback 3"]


@pytest.mark.parametrize(("refused", "is_done"), [(5, True), (10_000, False)])
def test_an_api_server_that_restarts_ends_no_wait(refused: int, is_done: bool) -> None:
    class Restarting(Rehearsed):
        def other_routers(self, color: str) -> list[str]:
            self.polls = getattr(self, "polls", 0) + 1
            if self.polls <= refused:
                raise CommandFailed("connection refused")
            return []

    release = Restarting()
    if is_done:
        run(release)
    else:
        with pytest.raises(CommandFailed, match="connection refused"):
            run(release)


def test_defaults_of_another_chart_come_and_go_with_it() -> None:
    old = copy.deepcopy(DEFAULTS)
    del old["pods"]["router"]["keda"], old["checks"]
    old["pods"]["router"]["retired"] = old["retired"] = {"by": "the chart"}
    old["apply"] |= {"retired": 5, "timeoutSeconds": 99}
    old["pods"]["head"]["resources"]["limits"] = {"memory": "4Gi", "cpu": "3"}
    own = {"image": {"tag": "1"}, "apply": {"repeatSchedule": None}, "target": {"threads": 3}}
    del old["apply"]["repeatSchedule"]
    old["target"]["threads"] = 3

    release = Rehearsed(values=old, own=own)
    run(release, {"image": {"tag": "2"}})
    beside, swapped, _ = release.given
    kept = {"timeoutSeconds": 99, "repeatSchedule": None}
    assert beside["apply"] == kept and "apply" not in swapped
    for step in (beside, swapped):
        assert "retired" not in str(step) and "keda" not in str(step) and "checks" not in step
    # Limits that run are kept: in one cluster, pods with others would mix with them.
    assert beside["pods"]["head"]["resources"]["limits"] == {"cpu": "3"}
    assert swapped["ray"]["standby"]["values"]["pods"]["head"]["resources"]["limits"] == {"cpu": "3"}
    assert swapped["ray"]["standby"]["values"]["target"] == {"threads": 3}


def test_routers_that_do_not_end_return_to_what_ran() -> None:
    release = Rehearsed()
    release.draining["green"] = 1000
    with pytest.raises(CommandFailed, match=r"not ended after 60 s: pod/router-1; revision 3 runs again"):
        run(release)
    assert release.calls[-3:] == ["rollback 4", "routers of blue?", "rollback 3"]


def test_a_failed_last_step_takes_nothing_back_that_serves() -> None:
    release = Rehearsed(fails="upgrade green")
    with pytest.raises(CommandFailed, match="green serves, and blue still runs"):
        run(release)
    assert not any("rollback" in call for call in release.calls)


def refused(values: Callable[[], Rehearsed]) -> str:
    release = values()
    with pytest.raises(ConfigError) as refusal:
        run(release)
    assert not any(call.startswith(("upgrade", "rollback")) for call in release.calls)
    return str(refusal.value)


def test_values_that_the_chart_refuses_change_nothing() -> None:
    assert "pods.target.gpus" in refused(lambda: Rehearsed(refusal="pods.target.gpus: is 2"))


def test_a_second_upgrade_waits_for_the_first() -> None:
    ray = {**DEFAULTS["ray"], "standby": {"name": "green"}}
    message = refused(lambda: Rehearsed(values={**DEFAULTS, "ray": ray}))
    assert "ray.standby.name: is green" in message and "helm rollback" in message


def test_a_way_back_that_fails_is_reported_with_the_step_that_failed_first() -> None:
    class Stuck(Rehearsed):
        tries = 0

        def roll_back(self, revision: int) -> None:
            self.tries += 1
            raise CommandFailed("the API server went away")

    message = "^timed out; the way back to revision 3 failed, too: the API server went away: remove by hand"
    with pytest.raises(CommandFailed, match=message):
        run(release := Stuck(fails="upgrade blue green"))
    assert release.tries == 1, "a second rollback would forget what the first one has not removed"


def test_a_way_back_begins_when_the_api_server_answers_and_keeps_the_routers() -> None:
    class Restarting(Rehearsed):
        refusals = 8

        def num_routers(self) -> int:
            self._answer()
            return super().num_routers()

        def keep_routers(self, number: int) -> None:
            self._answer()
            super().keep_routers(number)

        def _answer(self) -> None:
            self.refusals -= 1
            if self.refusals >= 4 or 0 <= self.refusals < 3:
                raise CommandFailed("connection refused")

    release = Restarting(fails="upgrade blue green")
    with pytest.raises(CommandFailed, match="timed out; revision 3 runs again"):
        run(release)
    assert (release.calls[-1], release.kept) == ("rollback 3", [6])


@pytest.mark.parametrize("command", ["num_routers", "keep_routers"])
def test_an_account_that_may_not_scale_routers_returns_without_their_number(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise CommandFailed("deployments.apps is forbidden")

    release = Rehearsed(fails="upgrade blue green")
    monkeypatch.setattr(release, command, forbidden)
    with pytest.raises(CommandFailed, match=r"^timed out; revision 3 runs again$"):
        run(release)
    assert (release.calls.count("rollback 3"), release.kept) == (1, [])
    said = "deployments.apps is forbidden; so there are as many routers as revision 3 says"
    assert release.said[-1] == said


@pytest.mark.parametrize("refusal", ["", MIXES])
@pytest.mark.parametrize(
    ("recorded", "said"), [(0, "connection refused"), (1, "another operation (upgrade) is in progress")]
)
def test_an_upgrade_that_helm_refuses_takes_nothing_back(refusal: str, recorded: int, said: str) -> None:
    class Refused(Rehearsed):
        def upgrade(self, chart: str, values: Values) -> None:
            self._revision += recorded
            raise CommandFailed(said)

    release = Refused(refusal)
    with pytest.raises(CommandFailed, match="revision 3 runs, nothing has changed"):
        run(release)
    assert release.calls == ["check"]


@pytest.mark.parametrize("fails", ["upgrade blue", "routers ready?"])
def test_a_single_step_that_fails_returns_to_what_ran(fails: str) -> None:
    release = Rehearsed(refusal="", fails=fails)
    release.applying["blue"] = 0
    with pytest.raises(CommandFailed, match="timed out; revision 3 runs again"):
        run(release, {"router": {"max_queued": 5}})
    assert release.calls[-2:] == [fails, "rollback 3"]


def test_a_job_of_a_single_step_that_does_not_end_returns_to_what_ran() -> None:
    release = Rehearsed(refusal="")
    release.applying["blue"] = 1000
    with pytest.raises(CommandFailed, match="Job of blue has not ended after 60 s: blue-apply; revision 3"):
        run(release, {"router": {"max_queued": 5}})
    assert release.calls[-2:] == ["jobs of blue?", "rollback 3"]
