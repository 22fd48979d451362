"""A recording: the rounds of prompts with one pair of models, in a file that is written as a whole."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_origin

from flyserve.core.errors import ConfigError
from flyserve.core.evidence import RoundEvidence
from flyserve.core.messages import ModelInfo
from flyserve.core.response import DeploymentInfo
from flyserve.whole_file import write_whole

_FORMAT = "flyserve recording 2"


@dataclass(frozen=True, slots=True)
class Pair:
    """Conditions of the evidence of a prompt.

    Attributes:
        target: Hash of the target's weights.
        target_kernels: Hash of the kernels that compute it.
        drafter: Hash of the drafter's weights, or the name of its look-up engine.
        drafter_kernels: Hash of the kernels that compute it; empty for a look-up engine.
        token_map: Hash of the map from tokens to ids.
        draft_length: Draft tokens of a round.
        context_length: Longest sequence of the target in tokens; 0 is unlimited.
        drafter_context_length: The same of the drafter.
        ending_ids: Tokens that end a response.
    """

    target: str
    target_kernels: str
    drafter: str
    drafter_kernels: str
    token_map: str
    draft_length: int
    context_length: int
    drafter_context_length: int
    ending_ids: tuple[int, ...]

    @classmethod
    def of(cls, deployment: DeploymentInfo, draft_length: int | None) -> "Pair":
        """Return the pair of a deployment; without `draft_length`, with its own one.

        Raises:
            ConfigError: It has no drafter at present, or drafts nothing by default.
        """
        target, drafter = deployment.target, deployment.drafter
        if drafter is None:
            raise ConfigError("the deployment has no drafter at present: a rule decides about drafts")
        length = draft_length or deployment.default_speculation.draft_length.max
        if not length:
            raise ConfigError("the deployment has drafts of 0 tokens by default: give --draft-length")
        return cls(
            target.weight_fingerprint,
            target.kernels,
            cls.name_of(drafter),
            drafter.kernels,
            target.token_map_hash,
            length,
            target.context_length,
            drafter.context_length,
            deployment.ending_ids,
        )

    @staticmethod
    def name_of(drafter: ModelInfo) -> str:
        """Return the hash of a drafter's weights, or the name of its look-up engine."""
        return drafter.weight_fingerprint or drafter.architecture


@dataclass(slots=True)
class RecordedPrompt:
    """The rounds of one prompt.

    Attributes:
        ids: Its tokens, as the model gets them.
        rounds: Evidence by the hash of the response's tokens before the round.
        texts: Texts of responses, by the hash of their tokens.
    """

    ids: tuple[int, ...]
    rounds: dict[int, RoundEvidence] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Recording:
    """Recorded prompts by their text."""

    pair: Pair
    prompts: dict[str, RecordedPrompt] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of prompts, rounds and texts: it grows with everything that is recorded."""
        return sum(1 + len(each.rounds) + len(each.texts) for each in self.prompts.values())

    def add(self, other: "Recording") -> None:
        """Add what another recording of the same pair has besides; prompts with other tokens are left out."""
        for text, theirs in other.prompts.items():
            own = self.prompts.setdefault(text, theirs)
            if own.ids == theirs.ids:
                for place, evidence in theirs.rounds.items():
                    own.rounds.setdefault(place, evidence)
                for place, found in theirs.texts.items():
                    own.texts.setdefault(place, found)

    def save(self, path: Path) -> None:
        """Write the file whole: until it is complete, the earlier one stays."""
        write_whole(path, "".join(f"{json.dumps(line)}\n" for line in self._lines()))

    def _lines(self) -> Iterator[Mapping[str, Any]]:
        yield {"format": _FORMAT, "num_prompts": len(self.prompts), "pair": asdict(self.pair)}
        for text, prompt in self.prompts.items():
            # NOTE: copied at once: after an error other threads may still record.
            rounds = {f"{place:x}": _listed(found) for place, found in prompt.rounds.copy().items()}
            texts = {f"{place:x}": found for place, found in prompt.texts.copy().items()}
            yield {"prompt": text, "ids": prompt.ids, "rounds": rounds, "texts": texts}


def load_recording(path: Path | None, pair: Pair | None, draft_length: int | None = None) -> Recording:
    """Read a recording; no file, or one that does not exist, is an empty one of `pair`.

    Raises:
        ConfigError: The file is no recording, is cut, or is of another pair than `pair`. None takes any
            with this `draft_length`, if it is given.
    """
    if pair is not None and (path is None or not path.exists()):
        return Recording(pair)
    if path is None:
        raise ConfigError("--offline: needs --recording")
    try:
        header, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if header["format"] != _FORMAT or header["num_prompts"] != len(lines):
            raise ValueError
        made_with = Pair(**{**header["pair"], "ending_ids": tuple(header["pair"]["ending_ids"])})
        if not all(_has_its_type(made_with, each) for each in fields(Pair)):
            raise ValueError
        found = Recording(made_with, {line["prompt"]: _prompt(line) for line in lines})
    except OSError as error:
        raise ConfigError(f"--recording: {path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError(
            f"--recording: {path} is no whole recording of this version: name another file, or remove it"
        ) from None
    wanted = pair or replace(made_with, draft_length=draft_length or made_with.draft_length)
    if made_with != wanted:
        raise ConfigError(f"--recording: {path} {_difference(made_with, wanted)}: name another file")
    return found


def _has_its_type(pair: Pair, of_pair: Field[Any]) -> bool:
    declared: Any = get_origin(of_pair.type) or of_pair.type
    return isinstance(getattr(pair, of_pair.name), declared)


def _listed(evidence: RoundEvidence) -> Sequence[Any]:
    return [getattr(evidence, each.name) for each in fields(RoundEvidence)]


def _prompt(line: Mapping[str, Any]) -> RecordedPrompt:
    rounds = {int(place, 16): _evidence(found) for place, found in line["rounds"].items()}
    texts = {int(place, 16): str(text) for place, text in line["texts"].items()}
    return RecordedPrompt(tuple(line["ids"]), rounds, texts)


def _evidence(values: Sequence[Any]) -> RoundEvidence:
    found = RoundEvidence(*map(tuple, values))
    if not found.is_whole:
        raise ValueError
    return found


def _difference(found: Pair, wanted: Pair) -> str:
    name = next(each.name for each in fields(Pair) if getattr(found, each.name) != getattr(wanted, each.name))
    return f"was recorded with {name} {getattr(found, name)}, not with {getattr(wanted, name)}"
