"""What a run is told of compaction, from options as the log has them."""

from __future__ import annotations

import contextbus.client as contextbus
from contextbus.client.triggers import DataTrigger
from contextbus_protocol.values import CompactionOptions


def configure(options: CompactionOptions) -> contextbus.Compaction:
    """The host's form of these options; what only a host can give is not in them."""
    assert options.target_tokens is not None
    keep = options.keep
    return contextbus.Compaction(
        triggers=[DataTrigger(trigger) for trigger in options.triggers],
        target_tokens=options.target_tokens,
        summariser=options.summariser,
        keep_last_messages=keep.keep_last_messages,
        keep_last_turns=keep.keep_last_turns,
        keep_recent_tokens=keep.keep_recent_tokens,
        keep_ratio=keep.keep_ratio,
        long_running=options.long_running,
        summary_input_tokens=options.summary_input_tokens,
        media=options.media,
        min_shrink=options.min_shrink,
        on_failure=options.on_failure,
    )
