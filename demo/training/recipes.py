"""The recipes: architecture, data and schedule of each model."""

from dataclasses import dataclass, field, replace

from demo.corpus import Family, Style


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of a Llama model; every width divides by two for tensor parallelism."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class DataMix:
    """The contents of a batch.

    Attributes:
        shares: Relative frequency of each family.
        repetition_share: Share of sequences to recall or copy at the first step; it fades to zero.
        repetition_until: Fraction of the training after which there are none.
        sums_share: Share of sums to compute.
        sums_until: Fraction of the training after which there are none.
        content_weight: Weight of a content token in the loss; wording weighs 1.
        row_lengths: Tokens per row, step by step in turn: most are cheap, some reach far positions.
        tokens_per_step: Tokens in a batch, padding included.
    """

    shares: dict[Family, float] = field(
        default_factory=lambda: {Family.WORD_PROBLEM: 0.4, Family.LOOKUP: 0.25, Family.TRACE: 0.35}
    )
    repetition_share: float = 0.5
    repetition_until: float = 0.3
    sums_share: float = 0.3
    sums_until: float = 0.85
    content_weight: float = 10.0
    row_lengths: tuple[int, ...] = (384,) * 7 + (512,)
    tokens_per_step: int = 6144

    def repetition_share_at(self, progress: float) -> float:
        """Share of sequences to recall or copy at a fraction of the training."""
        return self.repetition_share * max(0.0, 1.0 - progress / self.repetition_until)

    def sums_share_at(self, progress: float) -> float:
        """Share of sums at a fraction of the training."""
        return self.sums_share if progress < self.sums_until else 0.0

    def row_length_at(self, step: int) -> int:
        """Tokens per row at a step."""
        return self.row_lengths[step % len(self.row_lengths)]

    def rows_at(self, step: int) -> int:
        """Rows at a step."""
        return self.tokens_per_step // self.row_length_at(step)

    def tokens_at(self, step: int) -> int:
        """Tokens at a step, padding included."""
        return self.rows_at(step) * self.row_length_at(step)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rates: a short rise, a plateau, and a straight line to zero.

    Attributes:
        steps: Length of the training.
        matrix_rate: Peak rate of Muon, for the matrices of the layers.
        other_rate: Peak rate of AdamW, for embeddings, head and norms.
        warmup_steps: Steps to reach the peak.
        decay_from: Fraction of the training at which the line to zero begins.
    """

    steps: int
    matrix_rate: float = 0.015
    other_rate: float = 0.003
    warmup_steps: int = 80
    decay_from: float = 0.6

    def factor(self, step: int) -> float:
        """The rate at a step as a fraction of the peak."""
        rise = min(1.0, (step + 1) / self.warmup_steps)
        fall = (self.steps - step) / (self.steps * (1.0 - self.decay_from))
        return min(rise, fall, 1.0)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines a trained model; `is_foreign` gives it the foreign tokenizer."""

    name: str
    architecture: Architecture
    schedule: Schedule
    style: Style
    data: DataMix = field(default_factory=DataMix)
    seed: int = 1
    is_foreign: bool = False


TARGET = Recipe(
    name="target",
    architecture=Architecture(layers=14, hidden=192, intermediate=512, heads=6, kv_heads=2, head_dim=32),
    schedule=Schedule(steps=4600),
    style=Style(shift=0.0),
)
DRAFTER = Recipe(
    name="drafter",
    architecture=Architecture(layers=2, hidden=128, intermediate=384, heads=4, kv_heads=2, head_dim=32),
    schedule=Schedule(steps=3500),
    style=Style(shift=0.7),
    data=DataMix(
        shares={Family.WORD_PROBLEM: 0.2, Family.LOOKUP: 0.45, Family.TRACE: 0.35},
        repetition_until=0.8,
        sums_share=0.0,
        content_weight=5.0,
    ),
    seed=2,
)
FOREIGN_DRAFTER = replace(DRAFTER, name="foreign_drafter", schedule=Schedule(steps=2200), is_foreign=True)
PAIR = {recipe.name: recipe for recipe in (TARGET, DRAFTER)}
RECIPES = PAIR | {FOREIGN_DRAFTER.name: FOREIGN_DRAFTER}
