"""The messages that a command brings to a run: what the log is told of them, and the run with them (D.F.19)."""

from __future__ import annotations

import msgspec

from contextbus.core.estimate import Estimator
from contextbus.core.history import digest_message, is_only_results
from contextbus.core.run import append_messages, keep_messages
from contextbus.core.run_state import RunState
from contextbus.core.skill_loads import skill_facts
from contextbus_protocol import digests
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.commands import NewMessages
from contextbus_protocol.commit_requests import HistoryFact
from contextbus_protocol.errors import ConflictError, InvalidRequestError
from contextbus_protocol.events import (
    HistoryReplaced,
    MessageFact,
    MessagesAppended,
    RunStarted,
)
from contextbus_protocol.values import (
    ParentRun,
    Scope,
)


def take_messages(
    state: RunState, new: NewMessages, scope: Scope, estimator: Estimator, parent: ParentRun | None = None
) -> tuple[RunState, HistoryFact]:
    """The run with the messages that a command brings, and what its commit says of them (D.F.19).

    A client that built on the run's present history may replace its end; one that built on an older history may only
    bring what the run already has and more behind it.

    Raises:
        ConflictError: the run's history is another than the client thought; it must read it again.
        InvalidRequestError: the messages do not give the chain digest that the client names.
    """
    history = state.history
    facts = tuple(_fact_of(m, estimator) for m in new.messages)
    keep = new.keep
    if not 0 <= keep <= history.count:
        raise ConflictError("the run's history is shorter than the client's; read the run again")
    is_older = (new.base_count, new.base_chain) != (history.count, history.chain)
    if is_older:
        known = _known_prefix(state, keep, facts)
        keep, facts = history.count, facts[known:]
        messages = new.messages[known:]
    else:
        messages = new.messages
    replaced = HistoryReplaced(keep=keep) if keep < history.count else None
    after = keep_messages(state, keep)
    facts = keep_answers(after, facts)
    event = MessagesAppended(start=keep, messages=facts, chain=new.chain, inputs="")
    after = append_messages(after, event)
    if after.history.chain != new.chain:
        if is_older:  # another client replaced a part that this one thought to be kept
            raise ConflictError("others changed the run's history; read the run again")
        raise InvalidRequestError("the messages do not give the chain digest that the command names")
    return after, HistoryFact(
        started=RunStarted(scope=scope, estimator=estimator.spec, parent=parent) if state.scope is None else None,
        replaced=replaced,
        start=keep,
        facts=facts,
        messages=messages,
        chain=new.chain,
        count=after.history.count,
    )


def apply_history(state: RunState, history: HistoryFact, inputs: str = "") -> RunState:
    """The run with what a commit says of its messages, before it is committed.

    Args:
        state: the run that it was decided on.
        history: what ``take_messages`` gave.
        inputs: the blob of the messages.
    """
    if history.started is not None:
        started = history.started
        state = msgspec.structs.replace(state, scope=started.scope, estimator=started.estimator, parent=started.parent)
    if history.replaced is not None:
        state = keep_messages(state, history.replaced.keep)
    if not history.facts:
        return state
    event = MessagesAppended(start=history.start, messages=history.facts, chain=history.chain, inputs=inputs)
    return append_messages(state, event)


def _fact_of(message: ChatMessage, estimator: Estimator) -> MessageFact:
    calls, succeeded = skill_facts(message)
    return MessageFact(
        digest_message(message), estimator.message(message), message.role, calls, succeeded, is_only_results(message)
    )


def keep_answers(state: RunState, facts: tuple[MessageFact, ...]) -> tuple[MessageFact, ...]:
    """The facts of messages behind a run's history; of the results in them only those that a load of a skill awaits."""
    if not any(fact.succeeded for fact in facts):
        return facts
    awaited = {placed.call.call for placed in state.skill_calls}
    awaited.update(call.call for fact in facts for call in fact.skill_calls)
    return tuple(
        msgspec.structs.replace(fact, succeeded=tuple(call for call in fact.succeeded if call in awaited))
        if fact.succeeded
        else fact
        for fact in facts
    )


def _known_prefix(state: RunState, keep: int, facts: tuple[MessageFact, ...]) -> int:
    """How many of the messages the run already has behind the first ``keep``."""
    known = state.history.count - keep
    chain = state.history.keep(keep).chain
    for fact in facts[:known]:
        chain = digests.extend_chain(chain, fact.digest)
    if known > len(facts) or chain != state.history.chain:
        raise ConflictError("others changed the run's history; read the run again")
    return known
