"""A calibration: record `exact`, project every rule, replay the best ones whole, judge their responses."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from flyserve.bench.progress import progress_bar
from flyserve.calibration.candidate import EXACT_CANDIDATE, Candidate, listed
from flyserve.calibration.collect import Collector
from flyserve.calibration.frontier import Outcome, Row, figures, finalists, named
from flyserve.calibration.judge import Judge
from flyserve.calibration.prompts import Prompt
from flyserve.calibration.recording import RecordedPrompt, Recording, load_recording
from flyserve.calibration.replay import Projected, project
from flyserve.core.errors import ConfigError

T = TypeVar("T")


Save = Callable[[], None]


@contextmanager
def saved(
    recording: Recording, path: Path | None, console: Console, check: Callable[[], None] = lambda: None
) -> Iterator[Save]:
    """Write the recording after the block, also if the block fails; then the block's error is raised.

    The yielded function writes it in the meantime. A recording with nothing new is not written. What another
    calibration has written into the file since is kept.

    Args:
        recording: As it was read from the file.
        path: The file; None writes nothing.
        console: Console for the fault of the file, if the block fails.
        check: Called before each writing: raises ConfigError if what is new is of another pair.
    """
    size, stamp = recording.size, _stamp(None)  # the file may have changed while it was read

    def save() -> None:
        nonlocal size, stamp
        if path is None or recording.size <= size:
            return
        check()
        if _stamp(path) != stamp:
            recording.add(load_recording(path, recording.pair))
        size_now = recording.size
        recording.save(path)
        size, stamp = size_now, _stamp(path)

    try:
        yield save
    except BaseException:
        try:
            save()
        except ConfigError as error:
            console.print(f"what was recorded since the last rule is lost: {error}")
        raise
    save()


def _stamp(path: Path | None) -> tuple[int, ...]:
    """Return what every writing of a file changes; the same for every missing one."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        found = None
    return () if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)


class NotRecorded(ConfigError):
    """A recording lacks something, and nobody is asked for it."""

    def __init__(self, found: str) -> None:
        super().__init__(f"--offline: the recording lacks {found}: run once without --offline")


@dataclass(frozen=True, slots=True)
class Calibration:
    """The steps of a calibration.

    Attributes:
        collector: What completes the recording.
        recording: The recording.
        prompts: The prompts.
        judge: What decides whether a response is right.
        console: Console of the progress.
        save: Writes the recording; called after the tokens of the prompts, and after each rule.
        concurrency: Requests, or calls of the verifier, at a time.
    """

    collector: Collector
    recording: Recording
    prompts: Sequence[Prompt]
    judge: Judge
    console: Console
    save: Save
    concurrency: int = 8

    def run(self, rules: Sequence[Candidate], always: Sequence[str], num_finalists: int) -> list[Row]:
        """Return the rows of `exact`, of the rules named in `always`, and of the best of the others.

        If nobody is asked, rules that are not recorded are left out, and named on the console.

        Raises:
            ConfigError: A prompt does not fit the context, or `exact` is not recorded and nobody is asked. A
                name in `always` is that of no rule, or of one that cannot be served.
        """
        for name in always:
            named(rules, name)
        self._tokenize()
        exact = self._outcomes(EXACT_CANDIDATE)
        rows, missing = [figures(EXACT_CANDIDATE, exact, exact)], list[str]()
        fixed = [each for each in rules if each == EXACT_CANDIDATE or each.name in always]
        found = [*fixed, *finalists(self._projections(rules), num_finalists, fixed)]
        for rule in (each for each in rules if each in found and each != EXACT_CANDIDATE):
            try:
                rows.append(figures(rule, self._outcomes(rule), exact))
            except NotRecorded:
                missing.append(rule.name)
        if missing:
            self.console.print(f"left out, not recorded (run once without --offline): {listed(missing)}")
        return rows

    def _tokenize(self) -> None:
        """Tokenize the prompts, and check that each has room for a response, and its recorded tokens."""
        known, collector = self.recording.prompts, self.collector
        if collector.client is not None:
            all_ids = self._each("tokenizing", collector.tokenize, self.prompts)
            for prompt, ids in zip(self.prompts, all_ids, strict=True):
                collector.check_room(prompt, ids)
                if known.setdefault(prompt.prompt, RecordedPrompt(ids)).ids != ids:
                    found = "has other tokens now than in the recording: the chat template has changed"
                    raise ConfigError(f"{prompt.place}: {found}: name another --recording")
            self.save()
        if missing := [each.place for each in self.prompts if each.prompt not in known]:
            raise NotRecorded(f"the prompt {missing[0]}")

    def _projections(self, rules: Sequence[Candidate]) -> Mapping[Candidate, Projected]:
        """Return the projection of every rule on the rounds of `exact`."""
        collector = self.collector
        recorded = [self.recording.prompts[each.prompt] for each in self.prompts]
        return {
            rule: sum(
                (
                    project(each.rounds, rule, collector.limits(each), collector.pair.draft_length)
                    for each in recorded
                ),
                start=Projected(),
            )
            for rule in rules
        }

    def _outcomes(self, rule: Candidate) -> list[Outcome]:
        """Return the judged response to every prompt; raise NotRecorded if nobody is asked for one."""
        limit = f" with --max-new-tokens {self.collector.max_new_tokens}"

        def outcome(prompt: Prompt) -> Outcome:
            recorded = self.recording.prompts[prompt.prompt]
            if (replayed := self.collector.complete(recorded, rule)) is None:
                raise NotRecorded(f"the response by {rule.name} to {prompt.place}{limit}")
            if not self.judge.can_judge(prompt):
                return Outcome(prompt.family, replayed)
            if (text := self.collector.text(recorded, replayed.ids)) is None:
                raise NotRecorded(f"the text of the response by {rule.name} to {prompt.place}{limit}")
            return Outcome(prompt.family, replayed, self.judge.is_right(prompt, text))

        found = self._each(rule.name, outcome, self.prompts)
        self.save()
        return found

    def _each(self, label: str, step: Callable[[Prompt], T], prompts: Sequence[Prompt]) -> list[T]:
        """Return the result of a step for every prompt, several at a time; the first error ends it."""
        pool = ThreadPoolExecutor(self.concurrency)
        try:
            with progress_bar(self.console, len(prompts), label) as advance:

                def counted(prompt: Prompt) -> T:
                    result = step(prompt)
                    advance()
                    return result

                return list(pool.map(counted, prompts))
        finally:
            # NOTE: after an error nothing waits for the others: a signal leaves 6 s to save the recording.
            pool.shutdown(wait=False, cancel_futures=True)
