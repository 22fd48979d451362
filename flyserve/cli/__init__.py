"""The command line: `flyserve up`, `flyserve generate`, `flyserve bench`."""

import typer

from flyserve.cli import bench, generate, up
from flyserve.cli.cluster import apply, router, scaling, status

app = typer.Typer(
    name="flyserve",
    help="Serve language models several times faster: FLy speculative decoding as a distributed system.",
    epilog="Start with: flyserve up, then flyserve generate 'your prompt' in another terminal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("generate")(generate.generate)
app.command("bench")(bench.bench)
app.command("apply")(apply.apply)
app.command("status")(status.status)
app.command("scale")(scaling.scale)
app.command("drain")(scaling.drain)
app.command("down")(scaling.down)
app.command("router")(router.router)


def main() -> None:
    """Runs the command line."""
    app()
