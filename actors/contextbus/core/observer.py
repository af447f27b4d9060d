"""What a host may be told about compiles: an interface, so that nothing here knows who listens (D.S.1, D.S.5)."""

from __future__ import annotations

from typing import Protocol

from contextbus_protocol.package import ContextManifest


class Observer(Protocol):
    """Hears of each compile; what it does or raises never changes a package (D.S.5)."""

    def compile_finished(self, manifest: ContextManifest, seconds: float) -> None:
        """A compile ended with a package.

        Args:
            manifest: The account of the compile.
            seconds: How long it took.
        """
        ...
