"""Copy the schemas of the JSON Schema Test Suite out of the source archive of the package `jsonschema`.

`pip download --no-deps --no-binary :all: jsonschema==4.26.0` fetches the archive, and
`python -m tools.json_schema_suite ARCHIVE` writes tests/data/json_schema_suite.json.
"""

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).parents[1] / "tests" / "data" / "json_schema_suite.json"
_DRAFT = "/json/tests/draft2020-12/"
_LEFT_OUT = {"refRemote", "vocabulary"}
"""Files whose schemas need others that a server would have to fetch."""


def read_suite(archive: Path) -> dict[str, Any]:
    """Return the schemas of all required tests of draft 2020-12, with the source and its licence."""
    schemas, licence = [], ""
    with tarfile.open(archive) as files:
        for member in sorted(files.getmembers(), key=lambda each: each.name):
            found = files.extractfile(member)
            if found is None:
                continue
            if member.name.endswith("/json/LICENSE"):
                licence = found.read().decode()
            _, draft, name = member.name.rpartition(_DRAFT)
            keyword, _, ending = name.partition(".")
            if draft and "/" not in name and ending == "json" and keyword not in _LEFT_OUT:
                schemas += [
                    {
                        "keyword": keyword,
                        "title": group["description"],
                        "schema": _without_draft(group["schema"]),
                    }
                    for group in json.load(found)
                ]
    source = f"JSON Schema Test Suite (draft 2020-12), as in {archive.name}"
    return {"source": source, "licence": licence, "schemas": schemas}


def _without_draft(schema: Any) -> Any:
    """Return a schema without the name of its draft, which is the same for all."""
    return {k: v for k, v in schema.items() if k != "$schema"} if isinstance(schema, dict) else schema


def main(archive: str) -> None:
    """Write the schemas, one per line."""
    suite = read_suite(Path(archive))
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in suite.pop("schemas"))
    head = json.dumps(suite, ensure_ascii=False, indent=1).removesuffix("\n}")
    OUTPUT.write_text(f'{head},\n "schemas": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
