"""`python -m services.sub_drafter`: a sub-drafter replica without Ray."""

from fly.messages import Role
from services.common.flags import configure
from services.common.launch import run_service
from services.sub_drafter.config import SubDrafterConfig


def main() -> None:
    config = configure(SubDrafterConfig, "Serve proposals by look-up over gRPC.")
    from services.sub_drafter.servicer import create_host

    run_service(lambda: create_host(config), config, Role.SUB_DRAFTER)


if __name__ == "__main__":
    main()
