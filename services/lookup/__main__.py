"""`python -m services.lookup`: a look-up replica without Ray."""

import signal

from flyserve.signals import stop_signals


def main() -> None:
    stop_signals.listen(signal.SIGINT)
    from services.common.flags import configure
    from services.common.launch import run_service
    from services.lookup.config import SuffixConfig

    config = configure(SuffixConfig, "Serve proposals by look-up over gRPC, to drafters or to routers.")
    from services.lookup.servicer import create_host

    run_service(lambda: create_host(config), config, config.role)


if __name__ == "__main__":
    main()
