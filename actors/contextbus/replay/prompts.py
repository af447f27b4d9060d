"""The prompt of a recorded step: its parts as the client rendered them, and what they come to again (P.A.6)."""

from __future__ import annotations

import msgspec

from contextbus.core.estimate import Estimator
from contextbus.core.prompt import place_prompt, prompt_again, recorded_parts
from contextbus.core.run_state import RunState
from contextbus.replay.checks import BlobMissingError, FetchBlob
from contextbus_protocol import blobs, digests
from contextbus_protocol.chat import ChatMessage
from contextbus_protocol.commit_requests import PlacedPrompt
from contextbus_protocol.events import StepCompiled
from contextbus_protocol.package import Package
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import StepOptions


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
        if data is None or digests.digest_bytes(data) != fact.layer:
            raise BlobMissingError(fact.layer)
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
    """What the prompt comes to again; a tokenizer's counts are read, never made again (D.M.14).

    Args:
        state: the run before the step.
        event: the step.
        recorded: what its prompt was made from.
        package: its package.
        options: what it is compiled for, with what the host's hook changed.
        estimator: its counter.
    """
    if event.overflow is not None:
        before = None if state.last is None else state.last.prompt
        return None if before is None else prompt_again(before, package)
    if event.prompt is not None and estimator.spec.kind != "heuristic":
        return prompt_again(event.prompt, package)
    return place_prompt(recorded.parts, recorded.implicit, options, estimator)
