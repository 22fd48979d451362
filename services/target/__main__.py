"""`python -m services.target`: a target replica without Ray."""

import signal

from flyserve.signals import stop_signals


def main() -> None:
    stop_signals.listen(signal.SIGINT)
    from services.common.flags import configure
    from services.common.launch import run_service
    from services.target.config import TARGETS

    config = configure(TARGETS, "Serve verification by a target model over gRPC.")
    from services.target.servicer import create_host

    run_service(lambda: create_host(config), config, config.role)


if __name__ == "__main__":
    main()
