"""`python -m services.target`: a target replica without Ray."""

from services.common.flags import configure
from services.common.launch import run_service
from services.target.config import TargetConfig


def main() -> None:
    config = configure(TargetConfig, "Serve verification by a target model over gRPC.")
    from services.target.servicer import create_host

    run_service(lambda: create_host(config), config, config.role)


if __name__ == "__main__":
    main()
