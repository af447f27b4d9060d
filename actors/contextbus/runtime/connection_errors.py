"""What can go wrong when a message is sent or asked for."""

from __future__ import annotations


class DisconnectedError(ConnectionError):
    """The message was not sent, because there is no connection to the server now."""


class NoRespondersError(ConnectionError):
    """Nobody listens on the subject that was asked."""


class OverloadedError(ConnectionError):
    """The message was not sent, because the server does not keep up with what is sent."""


class PayloadTooLargeError(ValueError):
    """The message with its headers is larger than the server takes."""


class InvalidMessageError(ValueError):
    """The subject, the reply address or a header is malformed."""
