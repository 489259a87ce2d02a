"""Ports for servers and processes that the tests start."""

import socket


def free_ports(count):
    """Return ports of this machine that nothing listens to."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
