"""The data folder of an embedded server: who may use it, and where its server is found.

nats-server takes no lock on its store, and two servers on one folder corrupt it without a word.
So the folder has a lock of our own.  The server inherits the lock's file descriptor, hence the
lock is held for as long as the owner *or* its server lives, however either of them ends.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import msgspec

if sys.platform != "win32":
    import fcntl

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600

_held: set[int] = set()


class DataFolderError(RuntimeError):
    """The data folder cannot be used; the message says why and what to do."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server of a data folder answers; kept in a file that only its user can read."""

    url: str
    token: str
    pid: int
    durability: str

    def __repr__(self) -> str:
        return f"Endpoint(url={self.url!r}, pid={self.pid}, durability={self.durability!r})"


class DataFolder:
    """The files of one embedded server.

    Args:
        path: The folder; made, private to the user, where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.lock = self.path / "lock"
        self.endpoint = self.path / "endpoint.json"
        self.config = self.path / "nats.conf"
        self.ports = self.path / "ports"
        self.store = self.path / "jetstream"
        self.log = self.path / "nats.log"

    def prepare(self) -> None:
        """Make the folder, private to its user and out of version control.

        Raises:
            DataFolderError: It cannot be made, or belongs to somebody else.
        """
        try:
            for folder in (self.path, self.ports):
                folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            status = self.path.stat()
            if sys.platform != "win32" and status.st_uid != os.geteuid():
                raise DataFolderError(f"the data folder {self.path} belongs to another user; name one of your own")
            if status.st_mode & 0o077:
                self.path.chmod(PRIVATE_FOLDER)
            ignore = self.path / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n", encoding="utf-8")
        except OSError as error:
            raise DataFolderError(f"the data folder {self.path} cannot be used: {error.strerror}") from error

    def acquire(self) -> int | None:
        """Take the lock of the folder if nobody has it.

        Returns:
            The file descriptor that holds the lock, for the server to inherit; None if another
            process, or a server that outlived its owner, has it.
        """
        if sys.platform == "win32":
            raise DataFolderError("the embedded nats-server needs a POSIX system; start one and pass its nats:// URL")
        descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A folder that was deleted and made anew has another lock file: ours locks nothing.
            current = self.lock.stat().st_ino == os.fstat(descriptor).st_ino
        except OSError:
            current = False
        if not current:
            os.close(descriptor)
            return None
        _held.add(descriptor)
        return descriptor

    def release(self, descriptor: int) -> None:
        """Let go of the lock; a server that inherited it keeps it until it ends."""
        _held.discard(descriptor)
        os.close(descriptor)

    def read_endpoint(self) -> Endpoint | None:
        """Read where the server answers; None if none is running or it is still starting."""
        try:
            return msgspec.json.decode(self.endpoint.read_bytes(), type=Endpoint)
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return None

    def write_endpoint(self, endpoint: Endpoint) -> None:
        """Say where the server answers, in one atomic step."""
        self.write_private(self.endpoint, msgspec.json.encode(endpoint))

    def write_private(self, path: Path, content: bytes) -> None:
        """Replace a file by one that only the user can read."""
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        draft.replace(path)

    def sweep(self) -> None:
        """Remove what a dead server left behind; only the holder of the lock may do so."""
        self.endpoint.unlink(missing_ok=True)
        for stale in self.ports.glob("*.ports"):
            stale.unlink(missing_ok=True)
        for pattern in (f"{self.endpoint.name}.*", f"{self.config.name}.*"):
            for draft in self.path.glob(pattern):
                draft.unlink(missing_ok=True)


def _forget_in_forked_child() -> None:
    """Close inherited locks: a forked worker must not keep a folder locked after its owner."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_in_forked_child)
