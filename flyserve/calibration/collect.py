"""Record rounds: ask a deployment for those that a replay misses, and for the texts of responses."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from flyserve.calibration.candidate import EXACT_CANDIDATE, Candidate
from flyserve.calibration.prompts import Prompt
from flyserve.calibration.recording import Pair, RecordedPrompt
from flyserve.calibration.replay import Prefix, Replay, Replayed, apply_exact, place_of
from flyserve.chat_prompt import check_room, prompt_tokens
from flyserve.client import Client
from flyserve.core.errors import ConfigError, FlyServeError
from flyserve.core.evidence import ENTROPY_TOKENS, RoundEvidence
from flyserve.core.request import DraftLength, SpeculationParams
from flyserve.core.sequence import TokenSequence
from flyserve.core.speculation import Speculation
from flyserve.core.types import EntropyEstimator, Mode, ResponseLimits

_NEVER = 1e9
"""A threshold that no entropy reaches: the response is the target's own."""
_CHECK_S = 2.0
"""Longest wait for a deployment's pair: after a signal there are 6 s to save the recording."""


def hash_of(tokens: Sequence[int]) -> int:
    """Return the hash by which a recording names tokens."""
    return TokenSequence(tokens).prefix_hash(len(tokens))


@dataclass(frozen=True, slots=True)
class Collector:
    """Completes the recordings of prompts; several threads may complete different ones.

    Attributes:
        client: A client of the deployment; None asks nobody: only recorded rounds are replayed.
        pair: The deployment's pair of models.
        max_new_tokens: Most tokens of a response.
        timeout_s: Time limit of a request; None sets none.
    """

    client: Client | None
    pair: Pair
    max_new_tokens: int
    timeout_s: float | None = None
    _salt: str = field(default_factory=lambda: f"calibrate/{uuid4().hex}")

    def limits(self, prompt: RecordedPrompt) -> ResponseLimits:
        """Return the limits of a response: the router cuts it to the target's context."""
        room = self.pair.context_length - len(prompt.ids) if self.pair.context_length else self.max_new_tokens
        return ResponseLimits(min(self.max_new_tokens, room), frozenset(self.pair.ending_ids))

    def check_pair(self) -> None:
        """Raise ConfigError if the deployment has other weights now, as after an update.

        A deployment that does not answer at once is taken for unchanged, and so is a drafter that is away.
        """
        if self.client is None:
            return
        try:
            now = self.client.info(_CHECK_S)
        except FlyServeError:
            return
        drafter = Pair.name_of(now.drafter) if now.drafter else self.pair.drafter
        pairs = {
            "target": (self.pair.target, now.target.weight_fingerprint),
            "drafter": (self.pair.drafter, drafter),
        }
        for name, (before, after) in pairs.items():
            if before != after:
                raise ConfigError(f"the deployment has another {name} now, {after} in place of {before}")

    def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        """Return a prompt's tokens; see `prompt_tokens`."""
        assert self.client is not None
        return prompt_tokens(self.client, prompt.prompt, prompt.place, self.timeout_s)

    def check_room(self, prompt: Prompt, ids: Sequence[int]) -> None:
        """Raise ConfigError if a context has no room for a response after the tokens of a prompt."""
        context, of_drafter = self.pair.context_length, self.pair.drafter_context_length
        check_room(prompt.place, ids, context)
        longest = len(ids) + self.max_new_tokens
        if of_drafter and min(longest, context or longest) > of_drafter:
            found = f"has {len(ids)} tokens, and with {self.max_new_tokens} new ones exceeds"
            remedy = "leave it out, or lower --max-new-tokens"
            raise ConfigError(f"{prompt.place}: {found} the drafter's context of {of_drafter}: {remedy}")

    def complete(self, prompt: RecordedPrompt, candidate: Candidate) -> Replayed | None:
        """Return the response by a rule, and record the rounds that it misses.

        Return None if rounds are missing and there is no client.
        """
        limits = self.limits(prompt)
        replay = Replay(candidate, limits, self.pair.draft_length)
        while not isinstance(found := replay.advance(prompt.rounds), Replayed):
            if self.client is None:
                return None
            self._record(prompt, found, limits if candidate is EXACT_CANDIDATE else None)
        return found

    def _record(self, prompt: RecordedPrompt, prefix: Prefix, limits: ResponseLimits | None) -> None:
        """Record the round after `prefix`, or with limits of the response all that `exact` has from there."""
        num_tokens = limits.max_new_tokens - len(prefix) if limits else 1
        recorded = self._rounds((*prompt.ids, *prefix), num_tokens)
        if limits is None:
            prompt.rounds[hash_of(prefix)] = recorded[0]
            return
        speculation = Speculation((), EXACT_CANDIDATE.rule, limits, received=prefix)
        for each in recorded:
            prompt.rounds[place_of(speculation)] = each
            apply_exact(speculation, each, limits, self.pair.draft_length)

    def _rounds(self, sequence: Sequence[int], num_tokens: int) -> list[RoundEvidence]:
        """Return the evidence of the rounds of `exact` after a sequence, at least one."""
        assert self.client is not None
        response = self.client.generate(
            sequence,
            num_tokens,
            speculation=self._speculation(),
            timeout_s=self.timeout_s,
            logprobs=ENTROPY_TOKENS,
            evidence=True,
            cache_salt=self._salt,
        )
        if faults := [each for each in response.warnings if "had no draft" in each]:
            raise FlyServeError(f"a round could not be recorded: {faults[0]}")
        found = [each.evidence for each in response.choices[0].rounds]
        whole = [each for each in found if each is not None and each.is_whole]
        if not whole or len(whole) < len(found):
            raise ConfigError(
                "the deployment returns no evidence of its rounds: its version is an earlier one"
            )
        return whole

    def _speculation(self) -> SpeculationParams:
        """Return the speculation of a recorded round: all evidence, and the target's own tokens."""
        return SpeculationParams(
            mode=Mode.FLY,
            preset="official",
            threshold=_NEVER,
            entropy=EntropyEstimator.NORMALIZED,
            draft_length=DraftLength(self.pair.draft_length),
            reproducible_drafts=True,
        )

    def text(self, prompt: RecordedPrompt, response: Prefix) -> str | None:
        """Return the text of a response; None if it is not recorded and nobody can be asked."""
        place = hash_of(response)
        if place not in prompt.texts and self.client is not None:
            prompt.texts[place] = self._text(prompt.ids, response)
        return prompt.texts.get(place)

    def _text(self, ids: Sequence[int], response: Prefix) -> str:
        assert self.client is not None
        scored = self.client.generate(
            (*ids, *response), 0, timeout_s=self.timeout_s, prompt_logprobs=0, cache_salt=self._salt
        )
        return "".join(token.text for token in scored.prompt[len(ids) :])
