"""A nats-server whose store broke on a full disk: noticed in its log, and the end of it once there is room.

The server answers reads, but to a file on which a write has failed it never writes again, and says so to nobody.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from contextbus.runtime.logs import get_logger

LOOK_SECONDS: Final = 1.0
ROOM_BYTES: Final = 16 * 1024 * 1024

_SIGN: Final = b"no space left on device"
_MOST_READ: Final = 1024 * 1024

_log = get_logger(__name__)


class FullDiskWatch:
    """Watches one run of a server in a thread of its own; a context manager.

    Args:
        log: The log of the server; what stands in it already is not looked at.
        end: Ends the server, which is then started again; called at most once.
    """

    def __init__(self, log: Path, end: Callable[[], None]) -> None:
        self._path = log
        self._end = end
        self._read = _measure(log)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="nats-server-disk", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        broken = False
        while not self._over.wait(LOOK_SECONDS):
            try:
                if not broken and self._finds_sign():
                    broken = True
                    _log.error("nats_server_disk_full", fix="free disk space; the server is then started again")
                if broken and shutil.disk_usage(self._path.parent).free >= ROOM_BYTES:
                    self._end()
                    return
            except OSError as error:  # the next look may do better
                _log.warning("nats_server_log_unreadable", error=type(error).__name__)

    def _finds_sign(self) -> bool:
        size = _measure(self._path)
        if size < self._read:  # the server began a new file
            self._read = 0
        if size == self._read:
            return False
        with self._path.open("rb") as file:
            # From a little before: the words may have been half written at the last look.
            file.seek(max(0, self._read - len(_SIGN), size - _MOST_READ))
            found = _SIGN in file.read(_MOST_READ + len(_SIGN))
        self._read = size
        return found


def _measure(path: Path) -> int:
    """The bytes of a file; none while it is missing."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
