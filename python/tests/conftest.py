"""A server of the tests' own, and clients of it."""

import os
import pathlib
import signal
import subprocess

import pytest

import pando

PROGRAM = os.environ.get("PANDO") or str(
    pathlib.Path(__file__).parents[2] / "target" / "debug" / "pando"
)


class Server:
    """`pando serve` on a free port, until it is stopped."""

    def __init__(self, directory):
        self.data = directory / "data"
        subprocess.run([PROGRAM, "format", "--data", str(self.data)], check=True, capture_output=True)
        command = [PROGRAM, "serve", "--data", str(self.data), "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, "--http", "off"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for line in self.process.stdout:
            if line.startswith("serving "):
                self.address = line.split()[3]
                break
        else:
            raise RuntimeError("the server does not start")
        self.token_file = str(self.data / "admin.token")

    def stop(self):
        """Ends it, and waits until it has."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=30) == 0


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def client(server):
    with pando.connect(server.address, token_file=server.token_file) as connected:
        yield connected


@pytest.fixture
def top(client, request):
    """A new directory."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    path = f"/{name}"
    client.mkdir(path)
    yield path
    client.rmtree(path)
