"""Typed messages, channels, the scheduler service and its clients: pyzmq and msgspec on Unix sockets."""
