"""The page's pure modules: events, requests, runs, the time axis."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

Call = Callable[..., Any]

_PARSE = """async (pieces) => {
  const { createEventParser } = await import("./sse.js");
  const parser = createEventParser();
  return pieces.flatMap((piece) => parser.push(piece));
}"""
_STREAM = """async (body) => {
  const { stream } = await import("./api.js");
  window.fetch = async () => new Response(body, { status: 200 });
  const chunks = [];
  try {
    for await (const chunk of stream({ path: "v1/completions", body: {} })) chunks.push(chunk);
  } catch ({ message, remedy }) {
    return { chunks, message, remedy };
  }
  return { chunks };
}"""
_ABSORB = """async (chunks) => {
  const { absorb, startRun } = await import("./run.js");
  const run = startRun({ body: { speculation: { mode: "fly" } } });
  for (const chunk of chunks) absorb(run, chunk);
  return run;
}"""
FORM = {
    "prompt": "Ada's",
    "send_as": "text",
    "mode": "fly",
    "preset": None,
    "draft_length": 8,
    "window": None,
    "threshold": 0.5,
    "tail": None,
    "sub_drafter": True,
    "temperature": 0,
    "top_p": None,
    "seed": None,
    "max_tokens": 64,
}


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_events_are_the_same_however_the_stream_is_cut(page: Page, line_end: str) -> None:
    text = line_end.join(["data: a b", "", ": beat", "", "event: x", "data:c", "data: d", "", "data: rest"])
    for cut in range(len(text)):
        assert page.evaluate(_PARSE, [text[:cut], text[cut:]]) == ["a b", "c\nd"]


def test_a_stream_ends_with_its_end_mark(page: Page) -> None:
    whole = page.evaluate(_STREAM, 'data: {"id": 1}\n\ndata: [DONE]\n\n')
    assert whole == {"chunks": [{"id": 1}]}
    broken = page.evaluate(_STREAM, 'data: {"id": 1}\n\n')
    assert broken["message"] == "the stream broke off after 0 tokens"
    assert broken["chunks"] == [{"id": 1}]


def test_a_router_that_is_gone_is_told_with_its_remedy(page: Page) -> None:
    page.route("**/v1/completions", lambda route: route.abort())
    shown = page.evaluate(_STREAM.replace("window.fetch =", "const unused ="), "")
    assert shown["message"] == "the router cannot be reached"
    assert "flyserve up" in shown["remedy"]


def test_an_error_in_the_midst_of_a_stream_is_told_with_its_remedy(page: Page) -> None:
    event = '{"error": {"message": "no target", "code": "not_ready"}}'
    assert page.evaluate(_STREAM, f"data: {event}\n\n") == {
        "chunks": [],
        "message": "no target",
        "remedy": "try again in a moment",
    }


_KEYED = """async (key) => {
  document.body.innerHTML = '<div id="key" hidden><input id="api_key"></div>';
  const { served } = await import("./api.js");
  const sent = [];
  window.fetch = async (path, { headers }) => {
    sent.push(headers.Authorization ?? null);
    const error = { message: "the API key is not known", code: "invalid_api_key" };
    return new Response(JSON.stringify({ error }), { status: 401 });
  };
  document.getElementById("api_key").value = key;
  const shown = await served().catch(({ message, remedy, field }) => ({ message, remedy, field }));
  return { sent, shown, asks: !document.getElementById("key").hidden };
}"""


@pytest.mark.parametrize(("key", "header"), [("", None), ("secret", "Bearer secret")])
def test_a_router_that_wants_a_key_is_given_it_or_has_it_asked_for(
    page: Page, key: str, header: str | None
) -> None:
    found = page.evaluate(_KEYED, key)
    assert set(found["sent"]) == {header}
    assert found["asks"] and found["shown"]["field"] == "api_key"
    assert "one that this deployment knows" in found["shown"]["remedy"]


def test_a_command_for_a_shell_names_the_key_and_does_not_tell_it(call: Call) -> None:
    request = call("request.buildRequest", FORM, "m")
    assert "FLYSERVE_TOKEN" not in call("request.toCurl", request, "http://x")
    assert '"Authorization: Bearer $FLYSERVE_TOKEN"' in call("request.toCurl", request, "http://x", True)


def test_a_request_leaves_out_what_is_blank_or_without_effect(call: Call) -> None:
    request = call("request.buildRequest", FORM, "m")
    assert request == {
        "path": "v1/completions",
        "body": {
            "model": "m",
            "prompt": "Ada's",
            "max_tokens": 64,
            "temperature": 0,
            "stream": True,
            "verdicts": True,
            "speculation": {"mode": "fly", "draft_length": 8, "threshold": 0.5, "sub_drafter": True},
        },
    }
    plain = call("request.buildRequest", {**FORM, "send_as": "chat"}, "m", {"mode": "plain", "seed": 4})
    assert plain["path"] == "v1/chat/completions"
    assert plain["body"]["messages"] == [{"role": "user", "content": "Ada's"}]
    assert plain["body"]["speculation"] == {"mode": "plain"}
    assert plain["body"]["seed"] == 4


def test_a_run_gathers_text_tokens_and_rounds(page: Page) -> None:
    tokens = [{"id": 5, "text": "a", "verdict": "exact"}, {"id": 6, "text": " b", "verdict": "rescued"}]
    run = page.evaluate(
        _ABSORB,
        [
            {"choices": [{"text": "a b"}], "flyserve": {"tokens": tokens, "rounds": [{"index": 0}]}},
            {"choices": [{"delta": {"content": "!"}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {}},
        ],
    )
    assert (run["text"], run["finishReason"]) == ("a b!", "stop")
    assert run["counts"]["rescued"] == 1
    assert [(token["index"], token["round"]) for token in run["tokens"]] == [(0, 0), (1, 0)]


@pytest.mark.parametrize(("mode", "measure"), [("fly", "shares"), ("exact", "nats"), ("plain", "nats")])
def test_only_flys_rule_measures_entropy_in_a_unit_of_its_own(call: Call, mode: str, measure: str) -> None:
    request = {"body": {"speculation": {"mode": mode}}}
    assert call("run.startRun", request, "shares")["measure"] == measure


@pytest.mark.parametrize(
    ("ids", "others", "at"), [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([], [], None)]
)
def test_two_runs_part_at_their_first_different_token(
    call: Call, ids: list[int], others: list[int], at: int | None
) -> None:
    run, other = ({"tokens": [{"id": token} for token in each]} for each in (ids, others))
    assert call("run.firstDifference", run, other) == at


@pytest.mark.parametrize("longest", [0, 0.004, 0.05, 0.31, 1, 1.2, 7.3, 61])
def test_an_axis_holds_the_longest_run_with_few_round_ticks(call: Call, longest: float) -> None:
    axis = call("axis.axisFor", longest, 6)
    assert max(longest, 0.01) <= axis["end"] * (1 + 1e-9) <= max(longest, 0.01) * 2
    assert 3 <= len(axis["ticks"]) <= 7
    assert axis["ticks"][0] == 0
    assert axis["ticks"][-1] == axis["end"]


def test_the_parts_of_a_round_follow_each_other_within_it(call: Call) -> None:
    spent = {"draft_s": 0.5, "verify_s": 0.25, "wire_s": 0.25}
    parts = call("axis.partsOf", {"start_s": 1, "end_s": 3, **spent})
    assert [part["kind"] for part in parts] == ["draft", "verify", "wire"]
    assert [part["start"] for part in parts] == [1, 1.5, 1.75]
    squeezed = call("axis.partsOf", {"start_s": 1, "end_s": 1.5, **spent})
    assert [part["length"] for part in squeezed] == [0.25, 0.125, 0.125]


def test_a_point_in_time_finds_its_round_or_the_nearest(call: Call) -> None:
    rounds = [{"start_s": 0, "end_s": 1}, {"start_s": 1.2, "end_s": 2}]
    assert [call("axis.roundAt", rounds, time) for time in (0.5, 1.05, 1.15, 9)] == [
        rounds[0],
        rounds[0],
        rounds[1],
        rounds[1],
    ]
    assert call("axis.roundAt", [], 1) is None


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0012, "1.2 ms"), (0.0124, "12 ms"), (0.0996, "0.10 s"), (1, "1.00 s"), (12.34, "12.3 s")],
)
def test_durations_have_the_unit_that_suits_them(call: Call, seconds: float, shown: str) -> None:
    assert call("format.duration", seconds) == shown
