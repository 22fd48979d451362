"""Options that the command lines of several services have, with what they say of themselves."""

from typing import Annotated

import typer

Address = Annotated[str, typer.Option(help="host:port; port 0 takes a free one.")]
Security = Annotated[
    str | None,
    typer.Option(help="How it protects itself, such as '{tls: {certificate: ..., key: ..., ca: ...}}'."),
]
Telemetry = Annotated[
    str | None, typer.Option(help="What it tells of itself, such as '{metrics_port: 9400}'.")
]

# Of those that run a model.
Model = Annotated[str | None, typer.Option(help="Folder of the model, or org/name@revision.")]
Simulated = Annotated[
    str | None, typer.Option(help="Instead: parameters of a simulated model, such as '{base_s: 0.02}'.")
]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16.")]
MaxSequences = Annotated[int, typer.Option(help="Sequences that may be open at once.")]
KvTokens = Annotated[int, typer.Option(help="KV cache positions for all of them.")]
Threads = Annotated[int, typer.Option(help="CPU threads of a forward.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
