"""Configuration of one drafter replica that runs a model, by its engine."""

import math
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from flyserve.core.messages import Role
from services.common.config import AutoSwitch, Config
from services.common.machine.machine import affinity_cpus
from services.common.sections import Engines
from services.common.service_config import ServeSection
from services.drafter.ahead import DraftingLimits
from services.engine.config import (
    BuiltinSection,
    LlamaCppConfig,
    LlamaCppSection,
    ModelConfig,
    ModelSection,
    ReplicaConfig,
    VllmConfig,
    VllmSection,
)
from services.lookup.index.budget import IndexBudget

_USUAL_STANDALONE_PART = 4
"""Places of a drafter for each standalone sequence that it serves by default."""


class DraftLimit(Config):
    """Length of drafts."""

    max_draft: int = Field(DraftingLimits().max_draft, ge=1, le=1024)
    """Longest draft of one step, in tokens; a longer one is cut."""


class DraftingSection(ModelSection, DraftLimit):
    """Size and drafting of a replica that drafts with a model, on any engine."""

    standalone_sequences: int | None = Field(None, ge=0)
    """Sequences that one replica decodes by itself at once, for requests to the drafter's own model
    (`NAME-draft`); null allows a quarter of `max_sequences`, 0 serves none. Drafts for targets come first."""

    draft_ahead: AutoSwitch = "auto"
    """Continue to draft while the target verifies, as if all tokens were accepted. `on` always does. `auto`
    does so while rounds with it are faster than rounds without it, and if the CPUs of the machine are enough
    for the whole deployment; otherwise only while fewer sequences are open than there are CPUs, because each
    sequence keeps one CPU busy with its verification."""

    vocabulary: Literal["same", "text"] = "same"
    """Vocabulary of drafter and target: `same`, or `text` if they may differ: then the text of each draft is
    tokenized for the target. Equal vocabularies are not mapped."""

    lookup_index_tokens: int = Field(IndexBudget().max_tokens, ge=0)
    """Tokens of long sequences that the look-up indexes of one replica hold, over all sequences, at about 50
    bytes each. Beyond them a drafter looks up the latest tokens of a sequence only."""

    @property
    def standalone_limit(self) -> int:
        """The most standalone sequences."""
        if self.standalone_sequences is None:
            return max(1, self.max_sequences // _USUAL_STANDALONE_PART)
        return min(self.standalone_sequences, self.max_sequences)


class DrafterSection(BuiltinSection, DraftingSection):
    """Size and speed of a drafter replica."""


class VllmDrafterSection(VllmSection, DraftingSection):
    """Size and speed of a drafter replica on vLLM."""


class LlamaCppDrafterSection(LlamaCppSection, DraftingSection):
    """Size and speed of a drafter replica on llama.cpp."""


class DrafterProcess(DraftingSection, ReplicaConfig, ServeSection):
    """Keys of the process of a drafter replica, on any engine."""

    role: Literal[Role.DRAFTER] = Role.DRAFTER
    """Tier of the service."""

    registry: str | None = None
    """host:port of the registry that lists the sub-drafters."""

    sub_drafter: str | None = None
    """host:port of a sub-drafter, or `dns:host:port` of several, if there is no registry."""

    target_tokenizer: Path | None = None
    """Folder of the target's tokenizer, or `org/name@revision`; unused with `vocabulary: same`."""

    declared_cpus: float | None = Field(None, gt=0)
    """CPUs that the deployment's replicas and routers request together. Without it, `draft_ahead: auto` is
    off."""

    @model_validator(mode="after")
    def _knows_both_vocabularies(self) -> Self:
        if self.vocabulary == "same":
            return self
        found = f"vocabulary: is {self.vocabulary}"
        if self.target_tokenizer is None:
            raise ValueError(f"{found}, so target_tokenizer must be set")
        if self.model is None:
            raise ValueError(f"{found}, must be same for a simulated model, which has no tokenizer")
        return self

    @property
    def limits(self) -> DraftingLimits:
        """The limits of a session on this machine."""
        ahead_sequences = self.ahead_sequences(affinity_cpus())
        return DraftingLimits(self.max_draft, ahead_sequences, is_ahead_chosen=self.draft_ahead == "auto")

    def ahead_sequences(self, usable_cpus: int) -> float:
        """Return the number of open sequences up to which `usable_cpus` CPUs are enough to draft ahead."""
        if self.draft_ahead != "auto":
            return math.inf if self.draft_ahead == "on" else 0
        if self.declared_cpus is None:
            return 0
        return math.inf if usable_cpus >= self.declared_cpus else usable_cpus - 1


class DrafterConfig(DrafterSection, ModelConfig, DrafterProcess):
    """Everything that the process of a drafter replica is started with."""

    role: Literal[Role.DRAFTER] = Role.DRAFTER


class VllmDrafterConfig(VllmDrafterSection, VllmConfig, DrafterProcess):
    """Everything that the process of a drafter replica on vLLM is started with."""

    role: Literal[Role.DRAFTER] = Role.DRAFTER
    """Tier of the service."""


class LlamaCppDrafterConfig(LlamaCppDrafterSection, LlamaCppConfig, DrafterProcess):
    """Everything that the process of a drafter replica on llama.cpp is started with."""

    role: Literal[Role.DRAFTER] = Role.DRAFTER
    """Tier of the service."""


AnyDrafterConfig = DrafterConfig | VllmDrafterConfig | LlamaCppDrafterConfig
DRAFTERS: Engines[AnyDrafterConfig] = Engines(DrafterConfig, VllmDrafterConfig, LlamaCppDrafterConfig)
