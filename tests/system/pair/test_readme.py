"""The blocks of the README work when they are pasted into one shell, in their order."""

import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.chart_on_ray import free_port
from tests.support.documents import README, Snippet, snippets
from tests.support.leftovers import MarkedCommand
from tests.support.processes import ROOT

BLOCKS = snippets(README)


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
