"""Keys of the services that no deployment file sets, and the reason of each: the one list of them."""

from collections.abc import Mapping

PROCESS: Mapping[str, str] = {
    "grace_s": "rollout.drain_s is the time that running streams have to finish",
    "security": "it is a section of the whole deployment, next to the tiers",
    "telemetry": "it is a section of the whole deployment, next to the tiers",
}
"""Keys of every process."""

REPLICA: Mapping[str, str] = {
    **PROCESS,
    "address": "the controller assigns it, within service_ports",
    "role": "it is the tier's name",
    "device": "gpus decides it: cuda if it is above 0, else cpu",
    "simulated": "a deployment serves real models, because the router reads the target's tokenizer",
    "registry": "the controller sets its own address",
    "sub_drafter": "the controller's registry lists the sub-drafters",
    "target_tokenizer": "it is that of the target's model",
    "declared_cpus": "the controller adds up what the replicas request",
}
"""Keys of every replica."""

_OF_DRAFTS = "drafters index their sequences themselves, and ask a sub-drafter for snippets only"

SUB_DRAFTER: Mapping[str, str] = {
    **REPLICA,
    "lookup_index_tokens": _OF_DRAFTS,
    "max_draft": "drafters ask for the tokens that they need",
    "max_sequences": "the drafters have limits of their own",
}
"""Keys of a sub-drafter."""

ROUTER: Mapping[str, str] = {
    **PROCESS,
    "model": "it is the model of the target",
    "registry": "it is the controller's; flyserve router takes it by --registry",
    "targets": "the registry lists the targets",
    "drafters": "the registry lists the drafters",
    "start_timeout_s": "flyserve router takes it by --start-timeout-s, flyserve up by --startup-timeout-s",
    "scales_to_zero": "target.autoscaling.min: 0 sets it",
    "has_drafter": "drafter: null sets it",
    "speculation": "it is a section of the whole deployment, next to the tiers",
}
"""Keys of a router."""

TELEMETRY: Mapping[str, str] = {
    "metrics_ports": "the controller gives each tier a hundred",
    "replica": "the controller names each replica, and flyserve router --name a router",
    "deployment": "it is the key name of the file",
    "waits_for_port": "the controller sets it, for replicas that replace each other",
}
"""Keys of a process's telemetry."""
