"""`python -m benchmarks NAME [options]`: run a scenario and write its report."""

from flyserve.signals import stop_signals

if __name__ == "__main__":
    with stop_signals.silent_interrupts():
        import typer

        from benchmarks.harness.command import main
    typer.run(main)
