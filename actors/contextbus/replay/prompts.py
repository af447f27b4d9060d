"""The prompt of a recorded step: its parts as the client rendered them, and what they come to again (P.A.6)."""

from __future__ import annotations

import msgspec

from contextbus.core.estimate import Estimator, make_estimator
from contextbus.core.prompt import place_prompt, prompt_again, recorded_parts
from contextbus.core.run_state import RunState
from contextbus.replay.checks import BlobMissingError, FetchBlob
from contextbus_protocol import blobs, digests
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.codec import decode_json
from contextbus_protocol.commit_requests import PlacedPrompt
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.events import PromptFact, StepCompiled
from contextbus_protocol.package import Package
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import StepOptions

replace = msgspec.structs.replace


class RecordedPrompt(msgspec.Struct, frozen=True):
    """What a step's prompt was made from: the parts, and the message of ``before_compile``."""

    parts: PromptParts | None = None
    implicit: ChatMessage | None = None


def read_prompt(event: StepCompiled, package: Package, fetch: FetchBlob) -> RecordedPrompt:
    """What a step's prompt was made from, read from its blobs.

    Raises:
        BlobMissingError: the blob beside the package is gone.
        InvalidTypeError: the blobs do not hold what the log says.
    """
    fact = event.prompt
    if fact is None:
        return RecordedPrompt()
    layer = None
    if fact.layer is not None:
        data = fetch(fact.layer)
        if data is None:
            raise BlobMissingError(fact.layer)
        if digests.digest_bytes(data) != fact.layer:
            raise InvalidTypeError(f"blob {fact.layer} holds other bytes")
        layer = blobs.decode_layer(data).parts
    return RecordedPrompt(*recorded_parts(fact, package, layer))


def compute_prompt(
    state: RunState,
    event: StepCompiled,
    recorded: RecordedPrompt,
    package: Package,
    options: StepOptions,
    estimator: Estimator,
) -> PlacedPrompt | None:
    """What the prompt comes to again; of a tokenizer only its counts are read, never made again (D.M.14).

    Args:
        state: the run before the step.
        event: the step.
        recorded: what its prompt was made from.
        package: its package.
        options: what it is compiled for, with what the host's hook changed.
        estimator: its counter.
    """
    counts = estimator.spec.kind == "heuristic"
    placed = place_prompt(recorded.parts, recorded.implicit, options, estimator if counts else make_estimator())
    if placed is not None and event.prompt is not None and not counts:
        placed = replace(placed, fact=_read_costs(placed, event.prompt, event))
    if event.overflow is None:
        return placed
    before = None if state.last is None else state.last.prompt
    if placed is None:
        return None if before is None else prompt_again(before, package)
    if before is None or placed.fact != event.prompt:
        return placed
    return replace(placed, fact=before)  # nothing of it may be another than in the step that is compiled again (D.I.1)


def _read_costs(placed: PlacedPrompt, fact: PromptFact, event: StepCompiled) -> PromptFact:
    """What a prompt comes to, with recorded costs: the tail's are those of its messages, which the step's event has.

    The count of a prefill that is sent and of the system layer stand nowhere else; their sum is in the budget.
    """
    tail = fact.tail_eighteenths
    if placed.fact.prefill != "sent":
        behind = len(event.blocks) - len(placed.tail)
        tail = sum(block.eighteenths for block in event.blocks[behind:])
    return replace(placed.fact, system_eighteenths=fact.system_eighteenths, tail_eighteenths=tail)


def check_overflowed(state: RunState, event: StepCompiled, package: Package, fetch: FetchBlob) -> None:
    """Refuse a step compiled again whose prompt's messages are not those of the one before, byte for byte (D.I.1).

    What ``before_compile`` gave is in no digest of the prompt's.  Where the package before is gone, nothing is told.

    Raises:
        InvalidTypeError: they are others, or a package does not hold the messages that the log says.
    """
    last = state.last
    if event.overflow is None or event.prompt is None or last is None or last.prompt is None:
        return
    data = fetch(last.package)
    if data is None or digests.digest_bytes(data) != last.package:
        return
    before = decode_json(bytes(blobs.decode_output(data).package), Package)
    if prompt_again(last.prompt, before).tail != prompt_again(event.prompt, package).tail:
        raise InvalidTypeError("the prompt is another than that of the step that is compiled again")
