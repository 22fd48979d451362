"""`python -m benchmarks NAME [options]`: run a scenario and write its report."""

import typer

from benchmarks.harness.command import main

if __name__ == "__main__":
    typer.run(main)
