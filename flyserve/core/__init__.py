"""The pure core: types, the rule, the speculation loop, the look-up index. No torch, no gRPC, no Ray."""
