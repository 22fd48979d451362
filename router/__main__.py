"""`python -m router`: a router without Ray."""

import signal

from flyserve.signals import stop_signals


def main() -> None:
    stop_signals.listen(signal.SIGINT)
    from router.config import RouterConfig
    from router.server import create_host
    from services.common.flags import configure
    from services.common.launch import run_service

    config = configure(RouterConfig, "Serve text generation over gRPC, and over HTTP if it has a port.")
    run_service(lambda: create_host(config), config, "router")


if __name__ == "__main__":
    main()
