"""The protobuf package `flyserve`."""
