"""Writes `docs/reference/protocol.md` from the protos and their comments: `make protos` runs it."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "docs" / "reference" / "protocol.md"
FOLDER = "flyserve/v1"
ORDER = ("generation", "target", "drafter", "registry", "common")

# Numbers of fields in descriptor.proto, of which the paths of comments are made.
_MESSAGES, _ENUMS, _SERVICES, _SYNTAX = 4, 5, 6, 12
_MEMBERS = 2

_INTRODUCTION = """# The protocol

Generated from [the protos](../../protos/flyserve/v1) by `make protos`; do not edit.

`Generation` is public, served by the router. `Target` and `Drafter` are internal. A router opens one
stream to each replica, as a drafter does to its sub-drafters. It carries all sequences: each message has the
number of its sequence, and those that are ready together travel together. Every step sends the absolute
position: how many tokens to keep, what to append after them, and how many will never be rolled back. Prefill,
verification, roll-back, retry and fail-over are this one operation. A server that no longer has the kept
tokens answers `stale`, and the client replays the sequence from its start. A stream that ends without the
`close` of a sequence means that the peer is lost.
"""

Place = tuple[int, ...]


class Comments:
    """The leading comments of one file, by the path of what they stand before."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._texts = {
            tuple(location.path): " ".join(location.leading_comments.split())
            for location in file.source_code_info.location
        }

    def __getitem__(self, path: Place) -> str:
        return self._texts.get(path, "")


def main() -> None:
    """Writes the page."""
    OUTPUT.write_text(render(read_descriptors()), encoding="utf-8")


def read_descriptors() -> FileDescriptorSet:
    """The protos as protoc understands them, comments included.

    Raises:
        ValueError: protoc rejects them.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "protos"
        sources = [f"{FOLDER}/{name}.proto" for name in ORDER]
        flags = [f"-I{ROOT}/protos", f"--descriptor_set_out={output}", "--include_source_info"]
        if protoc.main(["protoc", *flags, *sources]) != 0:
            raise ValueError("protoc rejects the protos")
        return FileDescriptorSet.FromString(output.read_bytes())


def render(protos: FileDescriptorSet) -> str:
    """The page as Markdown."""
    files = {Path(file.name).stem: file for file in protos.file}
    lines = [_INTRODUCTION]
    for name in ORDER:
        lines += _file(name, files[name])
    return "\n".join(lines) + "\n"


def _file(name: str, file: FileDescriptorProto) -> Iterator[str]:
    comments = Comments(file)
    yield f"## {name}.proto\n\n{comments[(_SYNTAX,)]}\n"
    for index, service in enumerate(file.service):
        yield from _service(service, (_SERVICES, index), comments)
    for index, message in enumerate(file.message_type):
        yield from _message(message, (_MESSAGES, index), comments)
    for index, enum in enumerate(file.enum_type):
        yield from _enum(enum, (_ENUMS, index), comments)


def _service(service: ServiceDescriptorProto, path: Place, comments: Comments) -> Iterator[str]:
    yield f"### service {service.name}\n\n{comments[path]}\n"
    rows = []
    for index, method in enumerate(service.method):
        request = _streamed(_link(method.input_type), method.client_streaming)
        response = _streamed(_link(method.output_type), method.server_streaming)
        rows.append((f"`{method.name}`", request, response, comments[(*path, _MEMBERS, index)]))
    yield from _table(("call", "request", "response", "meaning"), rows)


def _message(message: DescriptorProto, path: Place, comments: Comments) -> Iterator[str]:
    yield f"### {message.name}\n\n{comments[path]}\n"
    rows = [
        (str(field.number), f"`{field.name}`", _type(message, field), comments[(*path, _MEMBERS, index)])
        for index, field in enumerate(message.field)
    ]
    if rows:
        yield from _table(("#", "field", "type", "meaning"), rows)


def _enum(enum: EnumDescriptorProto, path: Place, comments: Comments) -> Iterator[str]:
    yield f"### {enum.name}\n\n{comments[path]}\n"
    rows = [
        (str(value.number), f"`{value.name}`", comments[(*path, _MEMBERS, index)])
        for index, value in enumerate(enum.value)
    ]
    yield from _table(("#", "value", "meaning"), rows)


def _type(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    name = _name(field)
    for entry in message.nested_type:
        if entry.options.map_entry and field.type_name.endswith(f".{entry.name}"):
            return f"map<{', '.join(map(_name, entry.field))}>"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    if field.proto3_optional:
        return f"optional {name}"
    if field.HasField("oneof_index"):
        return f"{name}, one of `{message.oneof_decl[field.oneof_index].name}`"
    return name


def _name(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return _link(field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _link(type_name: str) -> str:
    name = type_name.rsplit(".", 1)[-1]
    return f"[{name}](#{name.lower()})"


def _streamed(name: str, is_stream: bool) -> str:
    return f"stream of {name}" if is_stream else name


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


if __name__ == "__main__":
    main()
