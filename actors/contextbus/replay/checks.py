"""What verification finds of one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from contextbus_protocol.errors import NotFoundError

FetchBlob = Callable[[str], bytes | None]
CheckStatus = Literal["same", "different", "missing", "redacted", "unverifiable"]


class Check(msgspec.Struct, frozen=True):
    """What came of one step, or of a commit that holds none.

    ``missing`` means that a blob is gone, ``redacted`` that a forget took it, ``unverifiable`` that this release no
    longer has the policy.  ``expected`` is what the log says, ``got`` what the computation or the bytes gave.
    """

    sequence: int
    status: CheckStatus
    step: int | None = None
    field: str = ""
    expected: str = ""
    got: str = ""


class BlobMissingError(NotFoundError):
    """A blob of the run is gone."""

    def __init__(self, reference: str) -> None:
        super().__init__(f"blob {reference} is gone")
        self.reference = reference
