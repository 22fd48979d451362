"""The playground's files: forbidden content, settings of the deployment, examples of the demo."""

import json
import re
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from demo.tasks import load_tasks
from flyserve.core.presets import PRESETS
from router.config import RouterConfig
from router.http.playground import routes
from router.model_files import ModelFiles, read_model
from tests.support.processes import TARGET_MODEL

STATIC = Path(routes.__file__).parent / "static"
FILES = sorted(STATIC.iterdir())
SCRIPTS = [file for file in FILES if file.suffix == ".js"]


def made(**speculation: object) -> RouterConfig:
    given = {"model": str(TARGET_MODEL), "targets": ("a:1",), "speculation": speculation}
    return RouterConfig.model_validate(given)


@pytest.fixture(scope="module")
def demo() -> ModelFiles:
    return read_model(made())


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


def test_the_page_learns_which_examples_suit_the_model(demo: ModelFiles, tmp_path: Path) -> None:
    settings = routes.page_settings(made(), demo)
    assert (settings["is_demo"], settings["has_chat_template"]) == (True, True)
    copytree(TARGET_MODEL, tmp_path, ignore=ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["added_tokens"][0]["content"] = "<another>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    described = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del described["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described))
    other = read_model(made().model_copy(update={"model": tmp_path}))
    settings = routes.page_settings(made(), other)
    assert (settings["is_demo"], settings["has_chat_template"]) == (False, False)


def test_the_page_is_told_the_presets_and_the_deployments_own_rule(demo: ModelFiles) -> None:
    config = made(mode="exact", preset="vllm", window=4, draft_length={"max": 9})
    settings = routes.page_settings(config, demo)
    assert set(settings["presets"]) == set(PRESETS)
    assert settings["presets"]["flyserve"] == {
        "window": 2,
        "threshold": 0.3,
        "tail": "reject",
        "entropy": "top_k",
    }
    assert settings["presets"]["paper"]["entropy"] == "normalized"
    assert settings["defaults"]["rule"]["window"] == 4
    assert settings["defaults"]["mode"] == "exact"
    assert settings["defaults"]["draft_length"] == {"max": 9}
    assert settings["limits"]["max_new_tokens"] == 131_072
