"""Object stores that run on this machine, each behind a proxy that fails on purpose: moto's S3, and Azurite for Azure's blobs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.remote import proxy
from tests.remote.proxy import Plan, Proxy

#: Azurite's documented account.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass
class Server:
    """`url`: of its one bucket. `variables`: of the environment in which fsspec reaches it through the proxy."""

    url: str
    variables: dict[str, str]
    proxy: Proxy
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """It takes connections, and nobody answers; what is under way is cut off."""
        self.process.send_signal(signal.SIGSTOP)
        self.proxy.plan = Plan("refused", span=1 << 30)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.proxy.plan = Plan()


def _s3(port: int) -> tuple[list[str], str]:
    pytest.importorskip("moto", reason="an S3 server for tests: pip install 'moto[server]'")
    pytest.importorskip("s3fs", reason="fsspec's way to S3: pip install s3fs")
    return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], "s3"


def _azure(port: int) -> tuple[list[str], str]:
    pytest.importorskip("adlfs", reason="fsspec's way to Azure: pip install adlfs")
    command = shutil.which("azurite-blob")
    if command is None:
        pytest.skip("a server of Azure's blobs for tests: npm install -g azurite")
    return [
        command,
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
    ], "az"


KINDS = {"s3": _s3, "azure": _azure}


def _variables(protocol: str, port: int) -> dict[str, str]:
    if protocol == "s3":
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip
    words = f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};BlobEndpoint=http://127.0.0.1:{port}/{_ACCOUNT};"
    return {"AZURE_STORAGE_CONNECTION_STRING": words}


@contextmanager
def running(kind: str, folder: Path) -> Iterator[Server]:
    """A server with one bucket; `folder` for what it writes. Skips the test where it is not installed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command, protocol = KINDS[kind](port)
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(port)
        with proxy.before(port) as before:
            variables = _variables(protocol, before.port)
            code = "import fsspec, sys; fsspec.filesystem(sys.argv[1]).mkdir('bucket')"
            subprocess.run(
                [sys.executable, "-c", code, protocol], env={**os.environ, **variables}, check=True, timeout=60
            )
            yield Server(f"{protocol}://bucket", variables, before, process)
    finally:
        process.kill()
        process.wait()


def _wait(port: int) -> None:
    """Until it answers."""
    end_s = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < end_s, "the server does not begin"
            time.sleep(0.1)
        else:
            return
