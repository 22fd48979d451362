"""How much is measured."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        demo_prompts: Problems that the demo pair answers under every setting.
        aligned_prompts: Prompts that each of the aligned pairs continues under every setting.
        aligned_tokens: New tokens of each.
        passes: Second passes that are compared with a first one at the same time.
        pass_prompts: Problems of a pass.
        control_prompts: The first of them, which are passed without a sub-drafter as well.
        ahead_pairs: Responses of the simulated engines under every setting.
        ahead_tokens: New tokens of each.
        ahead_lengths: Draft lengths among which the best counts, with drafting ahead and without.
    """

    demo_prompts: int = 60
    aligned_prompts: int = 12
    aligned_tokens: int = 192
    passes: int = 7
    pass_prompts: int = 100
    control_prompts: int = 20
    ahead_pairs: int = 7
    ahead_tokens: int = 192
    ahead_lengths: tuple[int, ...] = (4, 6, 8, 10)

    def quick(self) -> "Plan":
        """As much as shows that everything works, in a few minutes."""
        return replace(
            self,
            demo_prompts=4,
            aligned_prompts=2,
            aligned_tokens=64,
            passes=1,
            pass_prompts=10,
            control_prompts=2,
            ahead_pairs=2,
            ahead_tokens=64,
            ahead_lengths=(8,),
        )
