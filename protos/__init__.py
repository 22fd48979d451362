"""The wire contract: protobuf definitions with their generated stubs beside them."""
