"""What comes in: frames become messages, and only what is in order is let in."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from contextbus.actors.effects import Fetch
from contextbus.runtime import routes
from contextbus.runtime.bus import Frame
from contextbus.runtime.drive import JournalDriver
from contextbus.runtime.host_stats import HostStats
from contextbus.runtime.logs import get_logger
from contextbus.runtime.package_store import LONGEST_BLOB
from contextbus_protocol import codec
from contextbus_protocol.commands import ErrorReply
from contextbus_protocol.digests import is_digest
from contextbus_protocol.envelope import ReplyEncoding
from contextbus_protocol.errors import ContextBusError, InvalidRequestError, InvalidTypeError
from contextbus_protocol.messages import AnyMessage, ByReference
from contextbus_protocol.subjects import encode_name

REFERENCES_AT_ONCE: Final = 32

Accept = Callable[[AnyMessage], None]
Reject = Callable[[], None]

_log = get_logger(__name__)


class Inbound:
    """Reads frames and checks messages.

    Args:
        tenant: Whose messages are let in.
        driver: Fetches what came by reference.
        stats: Counts what is refused.
        send: Sends a reply: address, message, encoding.
        spawn: Starts a task of the host.
    """

    def __init__(
        self,
        tenant: str,
        driver: JournalDriver,
        stats: HostStats,
        send: Callable[[str, AnyMessage, ReplyEncoding], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._tenant = tenant
        self._driver = driver
        self._stats = stats
        self._send = send
        self._spawn = spawn
        self._fetching = 0

    def read(self, frame: Frame, accept: Accept, reject: Reject | None = None) -> None:
        """Decode a frame, and fetch what it only refers to.

        Args:
            frame: What arrived.
            accept: Takes the message, now or when it was fetched.
            reject: Called if there is no message; without it the frame's reply address is told.
        """
        try:
            message = codec.decode_message(frame.data, frame.content_type)
        except InvalidRequestError as error:
            self.reject(frame, "", error.code, error.message, reject)
            return
        if not isinstance(message, ByReference):
            accept(message)
        elif message.tenant != self._tenant or not is_digest(message.digest) or not _is_name(message.run):
            self.reject(frame, message.run, "invalid_request", "the reference names no blob of this tenant", reject)
        elif message.size > LONGEST_BLOB:
            self.reject(frame, message.run, "payload_too_large", f"more than {LONGEST_BLOB} bytes", reject)
        elif self._fetching >= REFERENCES_AT_ONCE:
            self.reject(frame, message.run, "busy", "too many large messages at once; send it again later", reject)
        else:
            self._fetching += 1
            self._spawn(self._fetch(frame, message, accept, reject))

    def reject(self, frame: Frame, run: str, code: str, text: str, otherwise: Reject | None = None) -> None:
        """Tell a frame's reply address, or `otherwise`, that no message came of it."""
        self._stats.refused += 1
        _log.warning("frame_refused", code=code, bytes=len(frame.data))
        if otherwise is not None:
            otherwise()
        elif frame.reply and routes.is_address(frame.reply, self._tenant):
            reply = ErrorReply(run=run, command="", code=code, message=text)
            self._send(frame.reply, reply, encoding_of(frame))

    def check(self, name: str, kinds: frozenset[type], message: AnyMessage) -> bool:
        """Decide whether a message may come in; who sent one that may not is told.

        Args:
            name: Who would take it.
            kinds: What is taken there.
            message: The message, its reply address filled in.
        """
        for address in routes.addresses(message):
            # Whatever else is wrong with it: nothing is ever sent where only our own rights reach.
            if not routes.is_address(address, self._tenant):
                self._stats.refused += 1
                _log.warning("reply_address_refused", actor=name, type=type(message).__name__)
                return False
        refusal = routes.check(message, self._tenant)
        if type(message) not in kinds:
            refusal = routes.Refusal("invalid_request", f"{name} does not take a message of this type here")
        if refusal is None:
            return True
        self.refuse(message, refusal.code, refusal.message)
        return False

    def refuse(self, message: AnyMessage, code: str, text: str) -> None:
        """Tell who waits for a message that it came to nothing."""
        self._stats.refused += 1
        _log.warning("message_refused", type=type(message).__name__, code=code)
        self.answer(message, code, text)

    def answer(self, message: AnyMessage, code: str, text: str) -> None:
        """Send the failure of a message, without counting it."""
        for send in routes.refuse(message, code, text):
            self._send(send.to, send.message, send.encoding)

    async def _fetch(self, frame: Frame, reference: ByReference, accept: Accept, reject: Reject | None) -> None:
        run, digest = reference.run, reference.digest
        try:
            fetched = await self._driver.fetch(Fetch(run, (digest,), digest))
        finally:
            self._fetching -= 1
        if not fetched.blobs:
            self.reject(
                frame, run, fetched.code or "not_found", "the bytes that the reference names are not there", reject
            )
            return
        try:
            message = codec.decode_message(fetched.blobs[0][1], reference.content_type)
        except ContextBusError as error:
            self.reject(frame, run, error.code, error.message, reject)
            return
        if isinstance(message, ByReference) or message.run != run:
            self.reject(frame, run, "invalid_request", "the reference leads to something else", reject)
            return
        accept(message)


def encoding_of(frame: Frame) -> ReplyEncoding:
    """Answer as was asked."""
    return "json" if frame.content_type == codec.JSON else "msgpack"


def _is_name(name: str) -> bool:
    try:
        encode_name(name)
    except InvalidTypeError:
        return False
    return True
