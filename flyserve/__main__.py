"""The command `flyserve`: name the missing extra where the client alone is installed."""

import sys

_PACKAGES = ("rich", "typer")
"""The packages of the extra `cli`."""


def main() -> None:
    """Run the command line."""
    try:
        from flyserve.cli import main as run
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        sys.exit(f"error: {error.name} is not installed: pip install 'flyserve[cli]'")
    run()


if __name__ == "__main__":
    main()
