"""Groups of sequences that attend in one call: every sequence once, and little padding."""

from hypothesis import example, given
from hypothesis import strategies as st

from services.engine.forward.attention_groups import Extent, group_sequences

EXTENTS = st.lists(
    st.builds(
        lambda rows, earlier: Extent(rows, rows + earlier),
        st.sampled_from([1, 2, 16, 64, 65, 2048]),
        st.sampled_from([0, 1, 100, 1000, 8000, 131_072]) | st.integers(0, 131_072),
    ),
    min_size=1,
    max_size=64,
)


@given(EXTENTS, st.sampled_from([1, 1024, 65_536, 1 << 20]))
@example([Extent(16, 131_072), *[Extent(16, 100)] * 63], 65_536)
def test_groups_are_a_partition_without_much_padding(extents: list[Extent], max_positions: int) -> None:
    groups = group_sequences(extents, max_positions)
    assert sorted(index for group in groups for index in group) == list(range(len(extents)))
    for group in groups:
        assert group == sorted(group)
        if len(group) == 1:
            continue
        lengths = [extents[index].num_positions for index in group]
        padded = len(group) * max(lengths)
        assert padded <= max_positions
        assert padded <= max(8192, 1.5 * sum(lengths))
        assert all(extents[index].num_rows <= 64 for index in group)


def test_a_long_sequence_is_not_padded_to() -> None:
    extents = [Extent(1, 500)] * 5 + [Extent(1, 131_072)] + [Extent(1, 700)] * 5
    assert group_sequences(extents, 1 << 20) == [[5], [*range(5), *range(6, 11)]]


def test_a_prefill_attends_alone() -> None:
    extents = [Extent(16, 300), Extent(512, 512), Extent(1, 310), Extent(2048, 4096)]
    assert group_sequences(extents, 1 << 16) == [[1], [3], [0, 2]]


def test_equal_sequences_are_one_group_up_to_the_limit() -> None:
    extents = [Extent(16, 1000)] * 64
    assert group_sequences(extents, 1 << 16) == [list(range(64))]
    assert [len(group) for group in group_sequences(extents, 32_000)] == [32, 32]
