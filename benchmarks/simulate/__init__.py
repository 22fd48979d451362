"""A large deployment in dilated time: real routers and real gRPC, models with the costs of an H200."""
