"""What a compaction stores is never a blob of something else: a forget erases it (C.X.11)."""

from __future__ import annotations

import pytest

from contextbus_protocol import blobs
from contextbus_protocol.chat import user


@pytest.mark.rule("C.X.11", "C.K.6", "C.X.8")
def test_the_same_messages_are_three_blobs_and_each_is_read_as_what_it_is() -> None:
    messages = (user("Deploy."), user("Now."))
    made = {blobs.encode_input(messages), blobs.encode_archive(messages), blobs.encode_replacement(messages)}
    assert len(made) == 3
    assert blobs.decode_archive(blobs.encode_archive(messages)).messages == messages
    assert blobs.decode_replacement(blobs.encode_replacement(messages)).messages == messages
    assert blobs.decode_input(blobs.encode_input(messages)).messages == messages
