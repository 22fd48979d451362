"""How much is measured."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        dtype: Compute type of every model, in every place.
        repetitions: Of every prompt under every setting.
        prompts: Of every pair.
        max_new_tokens: Of every response; those of the demo pair end by themselves before.
        streams: Requests at once through the stack.
        rows: Rows per sequence that the engine alone verifies.
        engine_dtypes: Compute types of the engine alone.
    """

    dtype: str = "bfloat16"
    repetitions: int = 3
    prompts: int = 8
    max_new_tokens: int = 256
    streams: tuple[int, ...] = (1, 4, 16)
    rows: tuple[int, ...] = (8, 12, 16)
    engine_dtypes: tuple[str, ...] = ("bfloat16", "float32")

    def quick(self) -> "Plan":
        """As much as shows that everything works, in about a minute."""
        return replace(
            self,
            repetitions=1,
            prompts=2,
            max_new_tokens=32,
            streams=(1, 4),
            rows=(16,),
            engine_dtypes=(self.dtype,),
        )
