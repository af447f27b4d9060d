"""The messages that a compiler without a run is given: its blocks among them, each digested and weighed once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from contextbus.core.estimate import Estimator
from contextbus.core.history import SourceHistory
from contextbus.core.prefix import first_cause
from contextbus.core.skill_loads import skill_facts
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.compiler_state import RequestPrefix
from contextbus_protocol.digests import EMPTY_CHAIN, digest_text, extend_chain
from contextbus_protocol.events import SkillCall
from contextbus_protocol.package import CachePrefixCause
from contextbus_protocol.values import Model


class SkillLoad(msgspec.Struct, frozen=True):
    """The newest load of a skill (D.K.26); ``chain`` links the messages up to it, so a later load has another."""

    skill: str
    chain: str


class RequestHistory(msgspec.Struct, frozen=True):
    """The messages of a request before a compile.

    ``present`` are the digests of own blocks among them (D.H.6).  ``calls`` are calls of ``load_skill`` that results
    may still answer, ``loads`` the skills that were loaded (D.K.26).
    """

    history: SourceHistory = SourceHistory()
    present: tuple[str, ...] = ()
    calls: tuple[SkillCall, ...] = ()
    loads: tuple[SkillLoad, ...] = ()

    def equals(self, other: RequestHistory) -> bool:
        """Whether the messages are the same."""
        return (self.history.count, self.history.chain) == (other.history.count, other.history.chain)


def take_request(
    known: RequestHistory, messages: Sequence[ChatMessage], own: Collection[str], estimator: Estimator
) -> RequestHistory:
    """The messages of the next request; what is known of the last one's is not computed again.

    Args:
        known: the last request.
        messages: all messages of this one.
        own: the digests of the blocks that the compiler gave out.
        estimator: the counter of the step.
    """
    keep, rest = known.history.difference(messages)
    start = known.history.keep(keep)
    if keep < known.history.count:
        known = _look(RequestHistory(), start, 0, own)
    return _look(known, start.append(rest, map(estimator.message, rest)), keep, own)


def _look(known: RequestHistory, history: SourceHistory, start: int, own: Collection[str]) -> RequestHistory:
    """What the messages from ``start`` on add to what is known of those before."""
    present, calls = list(known.present), known.calls
    loads = {load.skill: load for load in known.loads}
    for index, entry in enumerate(history[start:], start):
        if entry.digest in own:
            present.append(entry.digest)
        if entry.message is None:
            continue
        asked, succeeded = skill_facts(entry.message)
        if entry.message.role == "assistant":
            calls = asked  # what is not answered by now stays unanswered; ids may be used again
        loaded = [call.skill for call in calls if call.call in succeeded]
        chain = history.keep(index + 1).chain if loaded else ""
        loads |= {skill: SkillLoad(skill, chain) for skill in loaded}
    return RequestHistory(history, tuple(dict.fromkeys(present)), calls, tuple(loads.values()))


def make_prefix(
    history: SourceHistory,
    model: Model,
    tools_digest: str | None,
    blocks: Iterable[str] = (),
    layer: str | None = None,
) -> RequestPrefix:
    """What the next request is to begin with: these messages, then the blocks that stay behind them (D.F.15, D.F.22).

    Args:
        history: the messages of the request.
        model: the model that it goes to.
        tools_digest: over the tool definitions, if there are any.
        blocks: the digests of the append block, and on a model of D.F.8 of the tail (D.F.17).
        layer: the chain digest of the prompt's system messages, if there are any.
    """
    chain, count = history.chain, history.count
    for digest in blocks:
        chain, count = extend_chain(chain, digest), count + 1
    return RequestPrefix(
        model=_digest_model(model),
        tools=tools_digest,
        system=_system_chain(history),
        history=chain,
        count=count,
        layer=layer,
    )


def prefix_cause(
    prefix: RequestPrefix | None,
    history: SourceHistory,
    model: Model,
    tools_digest: str | None,
    layer: str | None = None,
    *,
    redacted: bool = False,
) -> CachePrefixCause | None:
    """Why a request does not begin as the one before did; None when it does, or is the first (D.F.15-D.F.18, D.F.22).

    A list of messages does not tell a compaction from another rewrite: both are ``history``.
    """
    if prefix is None:
        return None
    causes: list[CachePrefixCause] = []
    if prefix.model != _digest_model(model):
        causes.append("model")
    if prefix.tools != tools_digest:
        causes.append("tools")
    if (prefix.system, prefix.layer) != (_system_chain(history), layer):
        causes.append("system")
    if prefix.count > history.count or history.keep(prefix.count).chain != prefix.history:
        causes.append("redacted" if redacted else "history")
    return first_cause(causes)


def _digest_model(model: Model) -> str:
    return digest_text(f"{model.provider}\n{model.model_id}")


def _system_chain(history: SourceHistory) -> str:
    chain = EMPTY_CHAIN
    for entry in history:
        if entry.message is None or entry.message.role != "system":
            break
        chain = extend_chain(chain, entry.digest)
    return chain
