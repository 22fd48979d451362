"""The types of the client, as a user's mypy sees them in the programs of the documents."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

_PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", ["flyserve/README.md", "docs/clients.md"])
def test_the_programs_of_a_page_have_no_type_error(page: str, tmp_path: Path) -> None:
    programs = _PROGRAM.findall((ROOT / page).read_text(encoding="utf-8"))
    assert programs
    for index, program in enumerate(programs):
        (tmp_path / f"program_{index}.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", *sorted(tmp_path.glob("*.py"))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_misspelt_keyword_is_a_type_error(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text('from flyserve import Client\n\nClient().generate("the", temprature=0.5)\n')
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and 'Unexpected keyword argument "temprature"' in done.stdout
