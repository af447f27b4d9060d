"""The bytes of a package, put together from those of its parts, each of which is encoded once and digested."""

from __future__ import annotations

import msgspec

from contextbus_protocol.codec import encode_json
from contextbus_protocol.digests import digest_bytes
from contextbus_protocol.package import BlockPlacement, Package
from contextbus_protocol.values import Value


class PackageBytes(msgspec.Struct, frozen=True):
    """A package as JSON: ``data`` is what ``encode_json`` gives of it.

    ``manifest_digest`` is over the manifest's bytes, ``message_digests`` over those of each message of its blocks.
    """

    data: bytes
    manifest_digest: str
    message_digests: tuple[str, ...]


class _Block(Value, frozen=True):
    """A ``Block`` whose messages are bytes already; fields and their order are the same."""

    placement: BlockPlacement
    messages: tuple[msgspec.Raw, ...]


class _Package(Value, frozen=True, kw_only=True):
    """A ``Package`` whose parts are bytes already; fields and their order are the same."""

    version: int
    run_id: str
    step: int
    blocks: tuple[_Block, ...]
    manifest: msgspec.Raw
    prefill: str | None = None


def encode_package(package: Package) -> PackageBytes:
    """Encode a package.

    Raises:
        InvalidTypeError: a text of it holds a lone surrogate.
    """
    manifest = encode_json(package.manifest)
    digests: list[str] = []
    blocks: list[_Block] = []
    for block in package.blocks:
        encoded = [encode_json(message) for message in block.messages]
        digests += map(digest_bytes, encoded)
        blocks.append(_Block(block.placement, tuple(map(msgspec.Raw, encoded))))
    data = encode_json(
        _Package(
            version=package.version,
            run_id=package.run_id,
            step=package.step,
            blocks=tuple(blocks),
            manifest=msgspec.Raw(manifest),
            prefill=package.prefill,
        )
    )
    return PackageBytes(data, digest_bytes(manifest), tuple(digests))
