"""An upgrade of a release: in one step if running pods may stay, otherwise by a second Ray cluster."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol, TypeVar

from flyserve.core.errors import ConfigError, FlyServeError, NotReady
from orchestration.release.commands import CommandFailed, Installed, Release, read_chart
from orchestration.release.values import Steps, Values, as_installed, merged, plan, with_active, with_tag

_POLL_S = 2.0
_RETRIES = 30
"""Further tries of a command that fails, as while the API server restarts."""
_WOULD_MIX = "would mix"
"""Words of the chart's refusal to change running pods."""

_OTHER_UPGRADE = "another operation"
"""Words of helm's refusal while another command changes the release."""

T = TypeVar("T")
Report = Callable[[str], None]


class _NotBegun(CommandFailed):
    """Helm has refused an upgrade before it recorded a revision: there is nothing to take back."""


class _Clock(Protocol):
    def monotonic(self) -> float: ...
    def sleep(self, seconds: float, /) -> None: ...


def upgrade(
    release: Release,
    chart: str,
    given: Values | None,
    timeout_s: float,
    report: Report,
    clock: _Clock = time,
    replace: bool = False,
) -> None:
    """Upgrade a release without a gap; after a failed step, return to the revision that it had.

    Args:
        release: The release.
        chart: Folder or name of the chart.
        given: Values that differ from the chart's; None keeps those that the release has.
        timeout_s: Time limit for a Job to apply the deployment, and for old routers to finish their requests.
        report: Called with a line about each step.
        clock: Time and sleep.
        replace: Replace the running pods of Ray even if they may stay.

    Raises:
        ConfigError: The chart refuses the values, or another upgrade has not ended.
        FlyServeError: A step failed; the message says what runs now.
    """
    installed = release.read()
    if standby := (installed.values["ray"].get("standby") or {}).get("name"):
        raise ConfigError(
            f"ray.standby.name: is {standby}, so that an upgrade has not ended: finish it by helm upgrade,"
            " or return by helm rollback, one revision at a time"
        )
    own = with_active(installed.own if given is None else given, installed.values["ray"]["active"])
    if not (_needs_second_cluster(release, chart, own) or replace):
        return _upgrade_in_place(release, chart, own, installed.revision, timeout_s, report, clock)
    defaults, app_version = read_chart(chart)
    before = with_tag(as_installed(defaults, installed.values, installed.own), installed.app_version)
    after = with_tag(merged(defaults, own), app_version)
    _move(release, chart, plan(before, after, own, defaults), installed, timeout_s, report, clock)


def _needs_second_cluster(release: Release, chart: str, values: Values) -> bool:
    try:
        release.check(chart, values)
    except CommandFailed as refusal:
        if _WOULD_MIX in str(refusal):
            return True
        raise ConfigError(str(refusal)) from None
    return False


def _upgrade_in_place(
    release: Release,
    chart: str,
    values: Values,
    before: int,
    timeout_s: float,
    report: Report,
    clock: _Clock,
) -> None:
    """Upgrade in one step, from the revision `before`."""
    report("no running pod changes: one step")
    try:
        _begin(release, chart, values, before, clock)
        _wait_for_jobs(release, values["ray"]["active"], timeout_s, clock)
        _retried(release.wait_for_routers, clock, clock.monotonic() + timeout_s)
    except FlyServeError as error:
        _go_back(error, [lambda: _roll_back(release, before, report, clock)], before, report)


def _move(
    release: Release,
    chart: str,
    steps: Steps,
    installed: Installed,
    timeout_s: float,
    report: Report,
    clock: _Clock,
) -> None:
    """Run the three steps.

    NOTE: the way back is the way there. A new cluster is removed only once no router uses it.
    """
    old, new = steps.old, steps.new
    before = installed.revision
    returns: list[Callable[[], None]] = [lambda: _roll_back(release, before, report, clock)]
    try:
        report(f"1/3 start {new} beside {old}")
        _begin(release, chart, steps.beside, before, clock)
        both = _retried(release.revision, clock)
        _wait_for_jobs(release, new, timeout_s, clock)
        returns += [
            lambda: _wait_for_routers(release, old, timeout_s, clock),
            lambda: _roll_back(release, both, report, clock),
        ]
        report(f"2/3 move the routers to {new}")
        release.upgrade(chart, steps.swapped)
        _wait_for_jobs(release, new, timeout_s, clock)
        _wait_for_routers(release, new, timeout_s, clock)
    except FlyServeError as error:
        _go_back(error, returns, before, report)
    report(f"3/3 remove {old}")
    try:
        release.upgrade(chart, steps.alone)
    except FlyServeError as error:
        raise CommandFailed(
            f"{error}; {new} serves, and {old} still runs: remove it by helm upgrade"
        ) from error
    report(f"done: set ray.active to {new} in your values")


def _go_back(
    error: FlyServeError, returns: Sequence[Callable[[], None]], revision: int, report: Report
) -> NoReturn:
    """Run the steps of the way back, the last one first; raise CommandFailed with every fault."""
    if isinstance(error, _NotBegun):
        raise error
    report(f"failed: return to revision {revision}")
    try:
        for step in reversed(returns):
            step()
    except FlyServeError as fault:
        raise CommandFailed(
            f"{error}; the way back to revision {revision} failed, too: {fault}: remove by hand what only the"
            " newer revision has (helm history, helm get manifest), because another helm rollback does not"
        ) from error
    raise CommandFailed(f"{error}; revision {revision} runs again") from error


def _begin(release: Release, chart: str, values: Values, before: int, clock: _Clock) -> None:
    """Upgrade from the revision `before`."""
    try:
        release.upgrade(chart, values)
    except CommandFailed as error:
        if _OTHER_UPGRADE in str(error) or _retried(release.revision, clock) == before:
            raise _NotBegun(f"{error}; revision {before} runs, nothing has changed") from None
        raise


def _roll_back(release: Release, revision: int, report: Report, clock: _Clock) -> None:
    """Return to a revision as soon as the API server answers; an autoscaler keeps its number of routers.

    NOTE: a rollback is not repeated: helm compares with the last revision that it has recorded, so that a
    second one would leave what the first one has not removed.
    """
    routers, otherwise = 0, f"so there are as many routers as revision {revision} says"
    with _optional(otherwise, report):
        routers = _retried(release.num_routers, clock)
    release.roll_back(revision)
    if routers:
        with _optional(otherwise, report):
            _retried(lambda: release.keep_routers(routers), clock)


@contextmanager
def _optional(otherwise: str, report: Report) -> Iterator[None]:
    """Report a command that fails, as where the account lacks a right, and what follows; go on."""
    try:
        yield
    except CommandFailed as error:
        report(f"{error}; {otherwise}")


def _wait_for_jobs(release: Release, color: str, timeout_s: float, clock: _Clock) -> None:
    """Wait until all replicas of this cluster serve as the present revision says.

    NOTE: the other cluster may be broken, which can be the reason for the upgrade.
    """
    revision = _retried(release.revision, clock)
    _wait(lambda: release.unfinished_jobs(color, revision), f"the Job of {color} has", timeout_s, clock)


def _wait_for_routers(release: Release, color: str, timeout_s: float, clock: _Clock) -> None:
    """Wait until all routers use this cluster: those that end have finished their requests.

    NOTE: an old router ends only when a new one is ready in its place.
    """
    _wait(lambda: release.other_routers(color), "routers of the other cluster have", timeout_s, clock)


def _wait(remaining: Callable[[], list[str]], subject: str, timeout_s: float, clock: _Clock) -> None:
    deadline = clock.monotonic() + timeout_s
    while names := _retried(remaining, clock):
        if clock.monotonic() > deadline:
            raise NotReady(f"{subject} not ended after {timeout_s:g} s: {', '.join(names)}")
        clock.sleep(_POLL_S)


def _retried(command: Callable[[], T], clock: _Clock, deadline: float = math.inf) -> T:
    """Return the result of a command; repeat one that fails, but not after the deadline."""
    for _ in range(_RETRIES):
        try:
            return command()
        except CommandFailed:
            if clock.monotonic() > deadline:
                raise
            clock.sleep(_POLL_S)
    return command()
