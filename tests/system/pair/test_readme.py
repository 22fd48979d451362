"""The blocks of the README work when they are pasted into one shell, in their order."""

import re
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.chart_on_ray import free_port
from tests.support.documents import README, Snippet, snippets
from tests.support.leftovers import MarkedCommand
from tests.support.processes import ROOT

BLOCKS = snippets(README)
TEXT = README.read_text(encoding="utf-8")
MAX_LINES = 150
MAX_FIGURES = 6


def pasted(blocks: list[Snippet]) -> str:
    """Return the blocks as one script, with this interpreter's programs and with free ports."""
    http, grpc = free_port(), free_port()
    flags = f"--port {http} --grpc-port {grpc} --startup-timeout-s 600"
    here = {
        ".venv/bin/": f"{Path(sys.executable).parent}/",
        "127.0.0.1:8000": f"127.0.0.1:{http}",
        " --single-process &": f" --single-process {flags} &",
    }
    script = "\n".join(_in_shell(block) for block in blocks)
    for documented, actual in here.items():
        assert documented in script
        script = script.replace(documented, actual)
    return f"export FLYSERVE_ADDRESS=127.0.0.1:{grpc}\n{script}"


def _in_shell(block: Snippet) -> str:
    return f".venv/bin/python - <<'END'\n{block.code}END\n" if block.language == "python" else block.code


def test_every_block_works_in_one_shell(tmp_path: Path) -> None:
    command = MarkedCommand()
    script = pasted([block for block in BLOCKS if not block.needs])
    printed = tmp_path / "printed"
    try:
        # NOTE: no pipe, which a server would hold open if a block failed before the one that stops it.
        with printed.open("w") as file:
            done = subprocess.run(
                ("bash", "-euo", "pipefail", "-c", script),
                cwd=ROOT,
                env={**command.environment, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=900,
            )
    finally:
        leftovers = command.leftovers()
        for process in leftovers:
            process.kill()
        psutil.wait_procs(leftovers, timeout=600)
    text = printed.read_text(encoding="utf-8")
    assert done.returncode == 0, text
    assert not leftovers, "the last block stops the server"
    words = " ".join(text.split())
    assert words.count("Answer: 35") == 3, text


def test_blocks_that_a_test_cannot_run_are_few_and_say_what_they_need() -> None:
    assert {block.language for block in BLOCKS} == {"sh", "python"}
    assert [block.needs for block in BLOCKS if block.needs] == ["slow", "slow", "hub"]
    assert not any(block.mark for block in BLOCKS), "readers of the raw file see comments"


def test_it_is_a_page_and_no_manual() -> None:
    assert len(TEXT.splitlines()) <= MAX_LINES
    assert len(re.findall(r"\d\.\d+x", TEXT)) <= MAX_FIGURES


def test_each_figure_is_on_the_page_that_it_links() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| (\d\.\d+x) \| (\d\.\d+x) \| \[[^]]+\]\(([^)#]+)#([^)]+)\) \|$", TEXT, re.M
    )
    assert 2 * len(rows) == len(re.findall(r"\d\.\d+x", TEXT))
    for exact, fly, page, anchor in rows:
        section = _section(README.parent / page, anchor)
        assert exact in section and fly in section, (page, anchor)


def test_the_accuracy_by_family_is_that_of_its_page() -> None:
    page = _section(README.parent / "docs/accuracy.md", "what-fly-loses")
    measured = re.findall(r"^\| harder \| [^|]+ \| (\d+\.\d%) \| (\d+\.\d%) \|", page, re.MULTILINE)
    assert len(measured) == 3
    shown = re.findall(r"^\| [^|]+ \| (\d+\.\d%) \| \**(\d+\.\d%)\** \|$", TEXT, re.MULTILINE)
    assert shown == measured


def _section(page: Path, anchor: str) -> str:
    """Return the text from the heading of an anchor to the next one of the same or a higher level."""
    parts = re.split(r"^(#+) (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = list(zip(parts[1::3], parts[2::3], parts[3::3], strict=True))
    names = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for _, title, _ in found]
    start = names.index(anchor)
    level = len(found[start][0])
    end = next((i for i in range(start + 1, len(found)) if len(found[i][0]) <= level), len(found))
    return "".join(text for _, _, text in found[start:end])
