"""Domain objects to protobuf messages and back, a module per link."""
