"""The playground in a real browser, in front of the demo deployment."""

import json
import re
import shlex

from playwright.sync_api import Browser, Page, expect

from demo.tasks import Task
from tests.support.browser import TIMEOUT_MS, opened
from tests.support.playground import NARROW, WATCH, WIDE, generate, is_done, ready, style

_STOP_AT_FIRST_TOKEN = """() => {
  const stop = () => document.getElementById("stop").click();
  new MutationObserver(stop).observe(document.getElementById("tokens"), { childList: true });
}"""
_ESCAPE_AT_FIRST_COMPARED_TOKEN = """() => {
  const escape = () => dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  new MutationObserver(escape).observe(document.querySelector(".column .tokens"), { childList: true });
}"""


_SCROLLED = """[...document.querySelectorAll("main *")]
  .filter((each) => !each.closest(".request") && each.tagName !== "TEXTAREA")
  .filter((each) => each.scrollHeight > each.clientHeight + 1 && getComputedStyle(each).overflowY === "auto")
  .map((each) => each.id || each.className)"""


def test_tokens_arrive_one_after_another_in_the_colours_of_their_verdicts(
    page: Page, problems: list[Task]
) -> None:
    page.evaluate(WATCH)
    generate(page, problems[0].prompt)
    is_done(page)
    tokens = page.locator("#tokens").get_by_role("option")
    lengths = page.evaluate("lengths")
    assert len(lengths) >= 4
    assert lengths == sorted(lengths)
    assert lengths[-1] == tokens.count()
    counts = [int(count) for count in page.locator("#verdicts .count").all_text_contents()]
    assert sum(counts) == tokens.count()
    assert problems[0].is_solved_by("".join(tokens.all_text_contents()))
    assert style(page, ".token.exact") != style(page, ".token.corrected")
    assert style(page, ".token.corrected .ink", "text-decoration-style") == "double"
    assert page.evaluate("shifts") == []


def test_a_card_tells_of_the_token_that_is_pointed_at(page: Page, problems: list[Task]) -> None:
    generate(page, problems[0].prompt)
    is_done(page)
    rescued = page.locator(".token.rescued").first
    rescued.hover()
    card = page.get_by_role("tooltip")
    expect(card).to_contain_text("rescued")
    expect(card).to_contain_text("it was unsure here")
    expect(card).to_contain_text(re.compile(r"Entropy\d\.\d{3} nats"))
    expect(card).to_contain_text(re.compile(r"Target.s choice\W.+ \(\d+\)"))
    expect(card).to_contain_text(re.compile(r"Token id\d+Decided in round\d+"))
    page.mouse.move(5, 5)
    expect(card).to_be_hidden()


def test_everything_can_be_done_by_keyboard(page: Page, problems: list[Task]) -> None:
    page.get_by_label("Prompt", exact=True).focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(problems[1].prompt)
    page.keyboard.press("Control+Enter")
    is_done(page)
    page.locator("#tokens").get_by_role("option").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    focused = page.locator(":focus")
    expect(focused).to_have_attribute("data-index", "2")
    assert style(page, ":focus .ink", "outline-style") == "solid"
    card = page.get_by_role("tooltip")
    expect(card).to_be_visible()
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()
    page.keyboard.press("End")
    expect(card).to_be_visible()
    rounds = page.get_by_role("slider")
    rounds.focus()
    page.keyboard.press("ArrowRight")
    expect(rounds).to_have_attribute("aria-valuenow", "2")
    expect(card).to_contain_text("Round 2")
    expect(card).to_contain_text("Verify")


def test_three_modes_are_compared(page: Page, problems: list[Task]) -> None:
    page.get_by_label("Prompt", exact=True).fill(problems[0].prompt)
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("status")).to_contain_text("Done: exact")
    columns = page.locator(".column")
    texts = ["".join(columns.nth(i).get_by_role("option").all_text_contents()) for i in range(3)]
    assert texts[0] == texts[1] != ""
    assert columns.nth(0).locator(".token.plain").count() == columns.nth(0).get_by_role("option").count()
    expect(columns.nth(1)).to_contain_text("The same as plain, token for token")
    expect(columns.nth(2)).to_contain_text("rescued")
    for column in columns.all():
        assert float(column.locator(".clock").inner_text().split()[0]) > 0
        assert re.search(r"Speed-up\s*\d+\.\d\d\W", column.inner_text())
    assert page.get_by_role("slider").count() == 3


def test_modes_are_compared_at_once_where_asked(page: Page) -> None:
    page.get_by_label("all at once").check()
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("status")).to_contain_text("Done: exact")
    expect(page.locator(".column").nth(1)).to_contain_text("The same as plain, token for token")


def test_a_comparison_that_is_stopped_begins_no_other_mode(page: Page) -> None:
    page.evaluate(_ESCAPE_AT_FIRST_COMPARED_TOKEN)
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("status")).to_have_text("Stopped.")
    expect(page.locator(".column").nth(0)).to_contain_text("Not finished.")
    assert page.locator(".column").nth(1).locator(".token").count() == 0
    expect(page.get_by_role("button", name="Compare")).to_be_enabled()


def test_a_prompt_can_be_sent_as_a_message_and_its_answer_copied(page: Page, problems: list[Task]) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    expect(page.get_by_label("Send the prompt as")).to_have_value("chat")
    generate(page, problems[2].prompt)
    is_done(page)
    page.get_by_role("button", name="Copy text").click()
    expect(page.get_by_role("status")).to_have_text("Copied.")
    assert problems[2].is_solved_by(page.evaluate("navigator.clipboard.readText()"))


def test_stop_ends_a_run_and_the_next_one_goes_well(page: Page, problems: list[Task]) -> None:
    page.get_by_role("radio", name="Plain").check()
    page.evaluate(_STOP_AT_FIRST_TOKEN)
    generate(page, problems[0].prompt)
    expect(page.get_by_role("status")).to_contain_text("Stopped after")
    page.reload()
    ready(page)
    generate(page, problems[0].prompt)
    is_done(page)


def test_an_error_is_one_line_with_its_remedy(browser: Browser, url: str) -> None:
    with browser.new_context(viewport=WIDE) as profile:
        profile.set_default_timeout(TIMEOUT_MS)
        page = profile.new_page()
        page.goto(url)
        ready(page)
        page.get_by_label("Draft length").fill("1000")
        page.get_by_role("button", name="Generate").click()
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("draft_length.max is 1000, must be 0 to 64: change draft length")
        expect(page.get_by_label("Draft length")).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_label("Draft length")).to_be_focused()
        expect(alert).to_be_in_viewport()
        expect(page.locator(".field", has=alert)).to_contain_text("Draft length")
        assert page.locator("body").inner_text().count("must be 0 to 64") == 1
        assert page.get_by_role("slider").count() == 0
        page.get_by_label("Draft length").fill("8")
        page.get_by_role("button", name="Generate").click()
        is_done(page)
        expect(alert).to_be_empty()
        expect(page.locator(".field", has=alert)).to_have_count(0)


def test_what_is_no_number_is_not_sent(page: Page) -> None:
    page.get_by_label("Window").press_sequentially("1e")
    page.get_by_role("button", name="Generate").click()
    expect(page.get_by_role("alert")).to_have_text("Window is no number: change it.")
    assert page.locator(".token").count() == 0


def test_an_empty_prompt_is_not_sent_and_nothing_empty_is_shown(page: Page) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    for prompt in ("", " \n"):
        for button in ("Generate", "Compare"):
            page.get_by_label("Prompt", exact=True).fill(prompt)
            page.get_by_role("button", name=button).click()
            expect(page.get_by_role("alert")).to_have_text(
                "the prompt is empty: write one, or take an example."
            )
            expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
    assert sent == []
    for part in ("#figures", "#timeline", ".column"):
        expect(page.locator(part).first).to_be_hidden()
    page.get_by_role("button", name="Trace").click()
    expect(page.get_by_role("alert")).to_be_empty()
    page.get_by_role("button", name="Generate").click()
    is_done(page)
    expect(page.locator("#figures")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#timeline")).to_be_hidden()


def test_choices_last_until_they_are_reset_and_need_no_storage(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        ready(page)
        page.get_by_role("radio", name="Plain").check()
        page.get_by_label("Draft length").fill("7")
        page.get_by_label("Sub-drafter").uncheck()
        generate(page, "private words")
        is_done(page)
        page.reload()
        ready(page)
        expect(page.get_by_role("radio", name="Plain")).to_be_checked()
        expect(page.get_by_label("Draft length")).to_have_value("7")
        expect(page.get_by_label("Sub-drafter")).not_to_be_checked()
        assert "private" not in page.evaluate("JSON.stringify(localStorage)")
        page.get_by_role("button", name="Reset them").click()
        expect(page.get_by_role("radio", name="FLy")).to_be_checked()
        expect(page.get_by_label("Draft length")).to_have_value("")
        assert page.evaluate("localStorage.length") == 0
        page.evaluate("localStorage.setItem('flyserve.choices.flyserve-demo', '[')")
        page.add_init_script("delete Storage.prototype.setItem")
        page.reload()
        ready(page)
        page.get_by_label("Draft length").fill("8")
        page.get_by_role("button", name="Generate").click()
        is_done(page)


def test_a_narrow_page_has_no_scrolled_boxes(browser: Browser, url: str, problems: list[Task]) -> None:
    with opened(browser, url, viewport=NARROW) as page:
        ready(page)
        generate(page, problems[0].prompt)
        is_done(page)
        assert page.evaluate(_SCROLLED) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_the_buttons_stay_in_their_column_with_a_wide_font(page: Page) -> None:
    page.evaluate("document.body.style.fontFamily = 'monospace'")
    page.evaluate("document.body.style.letterSpacing = '2px'")
    form = page.locator("#controls").bounding_box()
    for name in ("Generate", "Compare", "Stop"):
        button = page.get_by_role("button", name=name).bounding_box()
        assert form and button and button["x"] + button["width"] <= form["x"] + form["width"]


def test_markup_in_a_prompt_stays_text(page: Page) -> None:
    generate(page, "<img src=x onerror=alert(1)> Ada has 4 books. How many books does Ada have now?")
    is_done(page)
    assert page.locator("#tokens img").count() == 0


def test_the_curl_command_says_what_the_page_sends(page: Page) -> None:
    page.get_by_label("Prompt", exact=True).fill('Ada\'s 4 "books"\n$HOME')
    page.get_by_label("Window").fill("4")
    page.get_by_text("This request for curl").click()
    command = shlex.split(page.locator("#curl").inner_text())
    sent: list[dict[str, object]] = []
    page.on("request", lambda request: sent.append(json.loads(request.post_data or "{}")))
    page.get_by_role("button", name="Generate").click()
    is_done(page)
    assert command[:2] == ["curl", "-N"]
    assert [json.loads(command[command.index("-d") + 1])] == sent
    assert sent[0]["messages"] == [{"role": "user", "content": 'Ada\'s 4 "books"\n$HOME'}]
    assert sent[0]["speculation"] == {"mode": "fly", "window": 4, "sub_drafter": True}
