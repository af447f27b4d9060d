"""The process of an embedded nats-server: started, kept running, ended.

A thread of its own starts the server, waits for its end and starts it again.  It lives exactly as
long as the server, because Linux ends a child bound to its parent when the *thread* that started it
ends, and because a thread that waits needs no polling and works under any event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Literal

import msgspec

from contextbus.runtime.datafolder import DataFolder, Endpoint
from contextbus.runtime.full_disk import FullDiskWatch
from contextbus.runtime.logs import get_logger

GuardMode = Literal["signal", "pipe"]

GUARD = Path(__file__).with_name("guard.py")
TOKEN_VARIABLE = "CTX_NATS_TOKEN"
START_SECONDS = 10.0
STOP_SECONDS = 10.0
STEADY_SECONDS = 10.0
RESTARTS = 5

_log = get_logger(__name__)


class ServerFailedError(RuntimeError):
    """The nats-server ended or did not answer; the message names its log."""


class _Ports(msgspec.Struct):
    nats: tuple[str, ...] = ()


class ServerProcess:
    """One nats-server that is started again when it dies.

    Args:
        binary: The nats-server.
        folder: The data folder, whose lock the caller holds.
        lock: The file descriptor of the lock, which the server inherits.
        token: The secret that the server asks for.
        durability: `fsync` or `interval`.
        guard: How the server is made to end with this process.
    """

    def __init__(
        self,
        binary: Path,
        folder: DataFolder,
        lock: int,
        *,
        token: str,
        durability: str,
        guard: GuardMode,
    ) -> None:
        self.endpoint: Endpoint | None = None
        self.failure: str | None = None
        self._binary = binary
        self._folder = folder
        self._lock = lock
        self._token = token
        self._durability = durability
        self._guard: GuardMode = guard
        self._port = -1
        self._child: subprocess.Popen[bytes] | None = None
        self._mutex = threading.Lock()
        self._stopping = threading.Event()
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._keep, name="nats-server", daemon=True)

    async def begin(self, seconds: float) -> Endpoint:
        """Start the server and wait until it answers.

        Raises:
            ServerFailedError: It ended at once, or took longer than `seconds`.
        """
        self._thread.start()
        await asyncio.wait({asyncio.wrap_future(self._ready)}, timeout=seconds)
        if self.endpoint is None:
            raise ServerFailedError(self.failure or f"nats-server did not answer in time; see {self._folder.log}")
        return self.endpoint

    def end(self) -> None:
        """End the server and wait for it: politely, then after ten seconds not."""
        with self._mutex:
            self._stopping.set()
            child = self._child
        if child is not None:
            self._terminate(child)
        if self._thread.ident is not None:
            self._thread.join()

    def _terminate(self, child: subprocess.Popen[bytes]) -> None:
        if child.stdin is not None:
            child.stdin.close()
        else:
            child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            if self.endpoint is not None and self.endpoint.pid != child.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.endpoint.pid, signal.SIGKILL)

    def _keep(self) -> None:
        """Start the server, wait for its end, and again; the body of the thread."""
        failures = 0
        try:
            while True:
                started = time.monotonic()
                reason = self._run_once()
                if reason is None or self._stopping.is_set():
                    return
                failures = 0 if time.monotonic() - started > STEADY_SECONDS else failures + 1
                if failures > RESTARTS or not self._ready.done():
                    self.failure = f"{reason}; see {self._folder.log}"
                    return
                _log.warning("nats_server_restarts", failures=failures)
                self._stopping.wait(0.05 * (2**failures - 1))
        except Exception as error:  # the thread is the last to see it, and reports it
            self.failure = f"nats-server could not be started: {error}"
        finally:
            self._set_ready()

    def _set_ready(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    def _run_once(self) -> str | None:
        """Run the server until it ends; None if it was not to be started any more."""
        self._folder.sweep()
        self._folder.write_private(self._folder.config, self._configuration().encode())
        with self._mutex:
            if self._stopping.is_set():
                return None
            watch = FullDiskWatch(self._folder.log, lambda: self._terminate(child))
            child = self._child = self._spawn()
        with child:
            url, pid = self._await_ports(child)
            if url:
                self._port = int(url.rpartition(":")[2])
                self.endpoint = Endpoint(url=url, token=self._token, pid=pid, durability=self._durability)
                self._folder.write_endpoint(self.endpoint)
                self._set_ready()
            elif child.poll() is None:
                self._terminate(child)
            else:
                # Another process may have taken the port meanwhile: any port is better than none.
                self._port = -1
            with watch:
                code = child.wait()
        self._folder.endpoint.unlink(missing_ok=True)
        return f"nats-server ended with exit code {code}"

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [str(self._binary), "-c", str(self._folder.config)]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), self._guard, str(os.getpid()), *command],
            stdin=subprocess.PIPE if self._guard == "pipe" else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, TOKEN_VARIABLE: self._token},
            pass_fds=(self._lock,),
            # Ctrl-C must reach this process first, which drains before it ends the server.
            start_new_session=True,
        )

    def _await_ports(self, child: subprocess.Popen[bytes]) -> tuple[str, int]:
        """Wait for the file in which the server says where it listens; ("", 0) if there is none."""
        deadline = time.monotonic() + START_SECONDS
        while child.poll() is None and time.monotonic() < deadline:
            for path in self._folder.ports.glob("*.ports"):
                try:
                    ports = msgspec.json.decode(path.read_bytes(), type=_Ports)
                except (OSError, msgspec.DecodeError):
                    continue  # it is being written
                if ports.nats:
                    return ports.nats[0], int(path.stem.rpartition("_")[2])
            time.sleep(0.0005)
        return "", 0

    def _configuration(self) -> str:
        folder = self._folder
        sync = "always" if self._durability == "fsync" else '"2m"'
        return "\n".join(
            (
                'server_name: "contextbus"',
                f'listen: "127.0.0.1:{self._port}"',
                f"ports_file_dir: {json.dumps(str(folder.ports), ensure_ascii=False)}",
                f"log_file: {json.dumps(str(folder.log), ensure_ascii=False)}",
                "logfile_size_limit: 10MB",
                "logfile_max_num: 2",
                "max_payload: 1MB",
                f"authorization {{ token: ${TOKEN_VARIABLE} }}",
                "jetstream {",
                f"  store_dir: {json.dumps(str(folder.store), ensure_ascii=False)}",
                f"  sync_interval: {sync}",
                "}",
                "",
            )
        )
