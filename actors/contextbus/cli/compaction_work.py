"""What a compaction of a file works on: its messages, its settings, and how they are counted."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import msgspec

from contextbus import client
from contextbus.cli.compaction_report import Facts
from contextbus.cli.failures import UsageFault
from contextbus.cli.message_files import MessageFile
from contextbus.cli.models import HEURISTICS, choose_estimator
from contextbus.client import CannotFit, CompactionPlan, RetentionPolicy
from contextbus.client.compaction.messages import Source, read_source
from contextbus.client.compaction.options import check_options
from contextbus.client.given import GivenMessage
from contextbus.core.ai_sdk import has_opaque
from contextbus.core.compaction.ranges import replayed_message
from contextbus.core.compaction.reduction import ReductionOptions
from contextbus.core.estimate import make_estimator
from contextbus.runtime.tokenizers import load_tokenizers
from contextbus_protocol.errors import InvalidTypeError

Count = Callable[[tuple[GivenMessage, ...]], int]
"""Counts messages, in tokens."""

_CHARACTERS: Final = "characters of the messages' JSON / 4"
_SHARE_OF_ROOM: Final = 8
"""A target that nobody chose leaves the summary at least one part in so many of the messages' count."""


class Media(enum.StrEnum):
    """What media in the conversation do."""

    protect = "protect"
    placeholder = "placeholder"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for; tokens by the chosen counter."""

    target_tokens: int
    keep_last_messages: int | None
    keep: RetentionPolicy | None
    instructions: str | None
    count_tokens: Count | None
    long_running: tuple[str, ...]
    media: Media

    @property
    def reduction(self) -> ReductionOptions:
        """What the reduction keeps to."""
        return check_options(
            target_tokens=self.target_tokens,
            keep_last_messages=self.keep_last_messages,
            instructions=None,
            count_tokens=None,
            own_blocks=(),
            long_running=self.long_running,
            keep=self.keep,
            context_window=None,
            media=self.media.value,
            min_shrink=0,
        ).reduction


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation with its settings, and what to say of it."""

    file: MessageFile
    source: Source
    settings: Settings
    facts: Facts

    def plan(self) -> CompactionPlan | CannotFit:
        """What would be replaced; nobody is asked."""
        settings = self.settings
        return client.plan_compaction(
            self.source.given,
            target_tokens=settings.target_tokens,
            keep_last_messages=settings.keep_last_messages,
            instructions=settings.instructions,
            count_tokens=settings.count_tokens,
            long_running=settings.long_running,
            keep=settings.keep,
            media=settings.media.value,
        )

    def replayed(self, start: int, end: int) -> int | None:
        """The index of the user's last message, if it is in a range."""
        return replayed_message(self.source.items, start, end)

    def with_target(self, tokens: int, why: str) -> Work:
        """The same with another target."""
        return msgspec.structs.replace(
            self,
            settings=msgspec.structs.replace(self.settings, target_tokens=tokens),
            facts=msgspec.structs.replace(self.facts, target=tokens, why=why),
        )


def prepare(
    name: str, file: MessageFile, settings: Settings, estimator: str | None, summariser: str, *, chosen: bool
) -> Work:
    """Read and count the conversation.

    Raises:
        UsageFault: a message cannot be read, or there is no such estimator.
    """
    try:
        source = read_source(file.messages)
    except InvalidTypeError as exc:
        raise UsageFault(f"{name}: {exc.message}") from None
    if estimator is None and any(map(has_opaque, source.messages)):
        estimator = HEURISTICS[0]
    count: Count | None
    count, counter = (None, _CHARACTERS) if estimator is None else _choose_counter(estimator)
    before = (client.estimate_tokens if count is None else count)(source.given)
    work = Work(
        file=file,
        source=source,
        settings=msgspec.structs.replace(settings, count_tokens=count),
        facts=Facts(
            name=name,
            messages=source.messages,
            before=before,
            target=settings.target_tokens,
            counter=counter,
            summariser=summariser,
        ),
    )
    return work if chosen else _with_default_target(work)


def _with_default_target(work: Work) -> Work:
    """Half of the messages' count, or more where what stays would leave the summary too little of it."""
    before = work.facts.before
    half, least = max(1, -(-before // 2)), max(1, before // _SHARE_OF_ROOM)
    halved = work.with_target(half, "half")
    match halved.plan():
        case CompactionPlan(room=room) if room < least:
            tokens = half - room + least
        case CannotFit(reason="protected-history", required_tokens=int() as required):
            tokens = required - 1 + least
        case _:
            return halved
    return work.with_target(tokens, "what stays and an eighth; half is too little") if tokens < before else halved


def _choose_counter(name: str) -> tuple[Count, str]:
    spec = choose_estimator(name)
    tokenizers = load_tokenizers((spec.name,) if spec.kind == "tokenizer" else ()).tokenizers
    made = make_estimator(spec, tokenizers)
    return lambda messages: made.estimate(read_source(messages).messages), f"{spec.name} ({spec.kind})"
