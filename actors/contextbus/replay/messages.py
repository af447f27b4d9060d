"""The messages that a commit added, read again from their blob."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from contextbus.core.estimate import make_estimator
from contextbus.core.history import digest_message, is_only_results
from contextbus.core.new_messages import keep_answers
from contextbus.core.run_state import RunState
from contextbus.core.skill_loads import skill_facts
from contextbus.core.step import (
    POLICY_RESTORING,
)
from contextbus.replay.checks import Check, CheckStatus, FetchBlob
from contextbus.replay.differences import first_difference
from contextbus.replay.run_log import LoggedCommit
from contextbus_protocol import blobs, digests
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.errors import ContextBusError
from contextbus_protocol.events import (
    MessageFact,
    MessagesAppended,
)


def check_messages(state: RunState, logged: LoggedCommit, event: MessagesAppended, fetch: FetchBlob) -> Iterator[Check]:
    """Hold appended messages against their blob: digests, counts, and what their facts say of their parts."""

    def check(status: CheckStatus, field: str, expected: object, got: object) -> Check:
        return Check(logged.sequence, status, None, field, str(expected), str(got))

    data = fetch(event.inputs)
    if data is None:
        yield check("missing", "inputs", event.inputs, "no blob")
        return
    if digests.digest_bytes(data) != event.inputs:
        yield check("different", "inputs", event.inputs, digests.digest_bytes(data))
        return
    try:
        messages = blobs.decode_input(data).messages
    except ContextBusError as exc:
        yield check("different", "inputs", "a step's input", exc.code)
        return
    spec = state.estimator
    estimator = make_estimator(spec) if spec is not None and spec.kind == "heuristic" else None
    if len(messages) != len(event.messages):
        yield check("different", "messages", len(event.messages), len(messages))
        return
    chain = state.history.chain
    for index, (message, fact) in enumerate(zip(messages, event.messages, strict=True)):
        digest = digest_message(message)
        chain = digests.extend_chain(chain, digest)
        if digest != fact.digest:
            yield check("different", f"messages[{index}].digest", fact.digest, digest)
            return
        if message.role != fact.role:
            yield check("different", f"messages[{index}].role", fact.role, message.role)
            return
        if estimator is not None and estimator.message(message) != fact.eighteenths:
            counted = estimator.message(message)
            yield check("different", f"messages[{index}].eighteenths", fact.eighteenths, counted)
            return
    if logged.commit.policy >= POLICY_RESTORING:
        for index, expected in enumerate(_read_again(state, messages, event)):
            field, said, read = first_difference(event.messages[index], expected)
            if field:
                yield check("different", f"messages[{index}].{field}", said, read)
                return
    if event.start != state.history.count:
        yield check("different", "start", event.start, state.history.count)
    elif chain != event.chain:
        yield check("different", "chain", event.chain, chain)


def _read_again(state: RunState, messages: Sequence[ChatMessage], event: MessagesAppended) -> tuple[MessageFact, ...]:
    """The facts of the messages with what their parts say read again (D.K.26, C.E.6)."""
    read = (
        msgspec.structs.replace(
            fact,
            skill_calls=calls,
            succeeded=succeeded,
            only_results=fact.only_results and is_only_results(message),  # older releases did not say so
        )
        for fact, message in zip(event.messages, messages, strict=True)
        for calls, succeeded in (skill_facts(message),)
    )
    return keep_answers(state, tuple(read))
