"""Calls between services of one process, by the interfaces of gRPC's asyncio API.

gRPC for Java and C++ has an in-process transport; gRPC for Python has none. A server has an address such as
`inprocess:target-0`, and only channels of the same process and event loop reach it.
"""
