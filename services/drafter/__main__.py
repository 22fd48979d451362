"""`python -m services.drafter`: a drafter replica without Ray."""

import signal

from flyserve.signals import stop_signals


def main() -> None:
    stop_signals.listen(signal.SIGINT)
    from services.common.flags import configure
    from services.common.launch import run_service
    from services.drafter.config import DRAFTERS

    config = configure(DRAFTERS, "Serve drafts by a small model over gRPC.")
    from services.drafter.servicer import create_host

    run_service(lambda: create_host(config), config, config.role)


if __name__ == "__main__":
    main()
