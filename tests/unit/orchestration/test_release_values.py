"""Values of the chart: merged, their difference, and the steps of an upgrade."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestration.release.values import (
    as_installed,
    difference,
    layered,
    merged,
    plan,
    with_active,
    with_tag,
    without_nulls,
)

LEAVES = st.none() | st.booleans() | st.integers(0, 3) | st.lists(st.integers(0, 2), max_size=2)
TREES = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(
        LEAVES, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
    ),
    max_size=3,
)


@given(base=TREES, wanted=TREES)
def test_a_difference_merged_over_its_base_gives_what_was_wanted(base: Any, wanted: Any) -> None:
    wanted = without_nulls(wanted)
    assert merged(base, difference(base, wanted)) == wanted
    assert difference(wanted, wanted) == {}


def test_null_removes_a_key_and_a_later_file_wins() -> None:
    defaults = {"drafter": {"model": "m"}, "target": {"kv_tokens": 7, "gpus": 0}, "list": [1, 2]}
    files = layered({"drafter": None, "list": [3]}, {"target": {"kv_tokens": None}})
    assert files == {"drafter": None, "list": [3], "target": {"kv_tokens": None}}
    assert merged(defaults, files) == {"target": {"gpus": 0}, "list": [3]}
    # A later file brings a tier back.
    assert merged(defaults, layered(files, {"drafter": {"model": "n"}}))["drafter"] == {"model": "n"}


@given(defaults=TREES, own=TREES)
def test_an_installed_release_of_the_same_chart_is_as_it_is(defaults: Any, own: Any) -> None:
    """Helm removes the keys that its user sets to null, and keeps those that are null in the chart."""
    installed = helm_merged(defaults, own)
    assert as_installed(defaults, installed, own) == without_nulls(installed) == merged(defaults, own)


def helm_merged(defaults: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    made = defaults | {
        key: helm_merged(defaults[key], value)
        if isinstance(value, dict) and isinstance(defaults.get(key), dict)
        else value
        for key, value in own.items()
    }
    return {key: value for key, value in made.items() if value is not None or key not in own}


def test_a_key_of_one_chart_alone_follows_that_chart_unless_the_user_gave_it() -> None:
    old = {"gone": 1, "both": 2, "given": 3, "limits": {"cpu": 1}, "section": {"gone": 1}}
    new = {"added": 5, "both": 6, "removed": 7, "limits": {"memory": 8}, "section": {"added": 9}, "off": {}}
    own = {"given": 4, "removed": None}
    installed = old | {"given": 4, "off": None}
    assert as_installed(new, installed, own) == {
        "added": 5,
        "both": 2,
        "given": 4,
        "limits": {"cpu": 1},
        "section": {"added": 9},
    }


def test_an_empty_tag_is_the_version_that_the_chart_names() -> None:
    image = {"tag": "", "digest": ""}
    assert with_tag({"image": image}, "1.2")["image"]["tag"] == "1.2"
    assert with_tag({"image": {**image, "digest": "sha256:0"}}, "1.2")["image"]["tag"] == ""
    assert with_tag({"image": {**image, "tag": "7"}}, "1.2")["image"]["tag"] == "7"


def test_a_key_that_null_removed_is_as_an_empty_one() -> None:
    for nulls in ({"image": {"tag": None, "digest": None}}, {"image": {"tag": None}}, {"image": None}, {}):
        assert with_tag(without_nulls(nulls), "1.2")["image"]["tag"] == "1.2"
    by_digest = without_nulls({"image": {"tag": None, "digest": "sha256:0"}})
    assert with_tag(by_digest, "1.2") == by_digest
    assert with_active({"ray": None}, "green") == {"ray": {"active": "green"}}


def test_a_release_alternates_between_blue_and_green() -> None:
    def values(color: str) -> dict[str, Any]:
        return {"ray": {"active": color, "version": "2"}, "image": {"tag": "1"}}

    for old, new in (("blue", "green"), ("green", "blue"), ("red", "green")):
        steps = plan(values(old), values(old), {"image": {"tag": "1"}}, {})
        assert (steps.old, steps.new) == (old, new)
        assert steps.alone == {"image": {"tag": "1"}, "ray": {"active": new}}
