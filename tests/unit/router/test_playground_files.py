"""The playground's files: forbidden content, settings of the deployment, examples of the demo."""

import re
from pathlib import Path

import pytest

from demo.tasks import load_tasks
from fly.presets import PRESETS
from router.config import RouterConfig
from router.http.playground import routes

STATIC = Path(routes.__file__).parent / "static"
FILES = sorted(STATIC.iterdir())
SCRIPTS = [file for file in FILES if file.suffix == ".js"]


def made(**speculation: object) -> RouterConfig:
    return RouterConfig.model_validate({"model": "m", "targets": ("a:1",), "speculation": speculation})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_comes_from_elsewhere_and_no_text_becomes_markup(file: Path) -> None:
    text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//cdn|@import|\burl\(", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)
    assert not re.search(r'\sstyle="|\son\w+="', text)


def test_the_page_names_only_files_that_there_are() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'(?:src|href)="playground/([^"]+)"', page))
    for script in SCRIPTS:
        named |= set(re.findall(r'from "\./([^"]+)"', script.read_text(encoding="utf-8")))
    assert named == {file.name for file in FILES} - {"index.html"}


def test_the_examples_are_held_out_problems_of_each_family() -> None:
    text = (STATIC / "examples.js").read_text(encoding="utf-8")
    families = {task.prompt: task.family for task in load_tasks()}
    shown = [families[prompt] for prompt in re.findall(r'^    "(.{50,})",$', text, re.MULTILINE)]
    assert shown == ["word_problem", "lookup", "trace"]


def test_the_page_is_told_the_presets_and_the_deployments_own_rule() -> None:
    settings = routes.page_settings(made(mode="exact", preset="vllm", window=4, draft_length={"max": 9}))
    assert set(settings["presets"]) == set(PRESETS)
    assert settings["presets"]["flyserve"] == {
        "window": 6,
        "threshold": 0.3,
        "tail": "carry",
        "entropy": "top_k",
    }
    assert settings["presets"]["paper"]["entropy"] == "normalized"
    assert settings["defaults"]["rule"]["window"] == 4
    assert settings["defaults"]["mode"] == "exact"
    assert settings["defaults"]["draft_length"] == {"max": 9}
    assert settings["limits"]["max_new_tokens"] == 4096
