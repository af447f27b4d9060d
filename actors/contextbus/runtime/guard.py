"""Run a command that ends with its parent, even when the parent is killed.

Run as a script, with nothing but the standard library: ``guard.py MODE PARENT COMMAND...``.

``signal`` asks the Linux kernel to end this process with its parent and then becomes the command,
so the process id stays.  ``pipe`` works everywhere: it runs the command as a child, and ends it
when standard input, a pipe that only the parent holds, is closed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from types import FrameType

PR_SET_PDEATHSIG = 1


def become(parent: int, command: list[str]) -> None:
    """Replace this process by the command, to be ended when the thread that started us ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    # The parent may have died before the kernel was asked.
    if os.getppid() == parent:
        os.execv(command[0], command)


def watch(command: list[str]) -> int:
    """Run the command as a child until it ends or standard input is closed."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, close_fds=False)

    def end(_signal: int, _frame: FrameType | None) -> None:
        child.terminate()

    def wait_for_parent() -> None:
        sys.stdin.buffer.read()
        child.terminate()

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=wait_for_parent, daemon=True).start()
    return child.wait()


def main(arguments: list[str]) -> int:
    """Run the command in the mode asked for; the exit code is the command's."""
    mode, parent, *command = arguments
    if mode == "pipe":
        return watch(command)
    become(int(parent), command)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
