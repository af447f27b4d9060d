"""A prompt as a frozen value, built part by part (P.A.1, P.A.3)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

import msgspec
from msgspec.structs import replace

from contextbus.client.given import GivenMessage, read_given
from contextbus.client.state import read_state
from contextbus.core import json_text
from contextbus.core.dynamic_state import render_state, state_message, state_system_message
from contextbus.core.guardrails import check_output_tag, output_tag_message, prefill_degrades
from contextbus.core.history import normalise
from contextbus.core.payload import Payload, Request, assemble, start_rendering
from contextbus.core.targets.tools import tools_text
from contextbus_protocol.chat import Cache, ChatMessage, ToolResult
from contextbus_protocol.chat import system as system_message
from contextbus_protocol.digests import clean_text
from contextbus_protocol.errors import InvalidTypeError
from contextbus_protocol.prompt import PromptParts
from contextbus_protocol.values import Model, ModelPrefix

StatePlacement = Literal["last_user", "system"]
STATE_PLACEMENTS: Final[tuple[StatePlacement, ...]] = get_args(StatePlacement)
"""Where dynamic state stands: a user message of the tail, or the end of the system layer (P.B.4)."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What a model call is made of; every method gives a new prompt with one part set anew.

    Building does no I/O, and a value that was handed over can change afterwards without a trace here.  ``state_text``
    is the rendered state and ``state_json`` the state as JSON, ``definitions`` are the tools as JSON.
    """

    system_messages: tuple[ChatMessage, ...] = ()
    messages: tuple[ChatMessage, ...] = ()
    state_text: str | None = None
    state_json: str | None = None
    state_placement: StatePlacement = "last_user"
    output_tag: str | None = None
    prefill: str | None = None
    thinking: bool = False
    definitions: str | None = None

    def __post_init__(self) -> None:
        """Refuse lists, which others could change."""
        if type(self.system_messages) is not tuple or type(self.messages) is not tuple:
            raise InvalidTypeError("a prompt holds tuples of messages; build it with system(...) and history(...)")

    def system(self, *messages: GivenMessage | str, cache: Cache = False) -> Prompt:
        """The system layer: texts, our messages, or a provider's.

        Args:
            messages: in their order.
            cache: asks for a cache breakpoint behind the last of them; ``"5m"`` and ``"1h"`` say for how long (P.E.4).

        Raises:
            InvalidTypeError: a message cannot be read, or is not of the role system.
        """
        if cache not in (False, True, "5m", "1h"):
            raise InvalidTypeError('cache: expected a boolean, "5m" or "1h"')
        read = _read(system_message(message) if isinstance(message, str) else message for message in messages)
        for place, message in enumerate(read):
            if message.role != "system":
                raise InvalidTypeError(f"system[{place}].role: expected system, not {message.role}")
        if cache and read:
            read = (*read[:-1], replace(read[-1], cache=cache))
        return replace(self, system_messages=read)

    def history(self, messages: Iterable[GivenMessage]) -> Prompt:
        """The conversation: our messages, any provider's, or an SDK's objects.

        Raises:
            InvalidTypeError: a message cannot be read; the text names its index and field.
        """
        return replace(self, messages=_read(messages))

    def state(
        self, value: object, schema: Mapping[str, object] | None = None, *, placement: StatePlacement = "last_user"
    ) -> Prompt:
        """The dynamic state, validated and rendered at once (P.B.1, P.B.2).

        Args:
            value: a msgspec Struct, a dataclass, a pydantic model, a dict, or a pair of such a type and a dict.
            schema: the JSON Schema of a dict.
            placement: ``last_user``, a user message of the tail, or ``system``, the end of the system layer, where each
                change costs the provider's cache (P.B.4).

        Raises:
            InvalidTypeError: the state breaks its type or schema; the message names the field and the rule.
            RangeError: a number is not finite, or too long.
            LimitError: the state has too many elements.
        """
        if placement not in STATE_PLACEMENTS:
            raise InvalidTypeError(f"placement: expected one of {', '.join(STATE_PLACEMENTS)}")
        read = read_state(value, schema)
        text = json.dumps(json_text.clean_value(read), ensure_ascii=False)
        return replace(self, state_text=render_state(read), state_json=text, state_placement=placement)

    def guardrails(
        self, *, output_tag: str | None = None, prefill: str | None = None, thinking: bool = False
    ) -> Prompt:
        """How the answer is to look.

        Args:
            output_tag: the element that the whole answer is to stand in (P.C.1).
            prefill: what the answer begins with: the start of the assistant's message where the model takes one, else
                an instruction at the end of the tail (P.C.2).  Blank text is none.
            thinking: the model is asked to think, which no prefill goes with (P.C.4).

        Raises:
            InvalidTypeError: the tag is no name of an element, or a value has another type.
        """
        if output_tag is not None:
            check_output_tag(output_tag)
        _check("prefill", prefill or "", str)
        _check("thinking", thinking, bool)
        text = (prefill or "").rstrip() or None
        return replace(self, output_tag=output_tag, prefill=text, thinking=thinking)

    def tools(self, definitions: Iterable[Mapping[str, object]] | str | None) -> Prompt:
        """The tool definitions, in any provider's shape.

        Raises:
            InvalidTypeError: a definition cannot be read; the text names its index and field.
        """
        if definitions is not None and not isinstance(definitions, str):
            definitions = tuple(definitions)
            for place, definition in enumerate(definitions):
                _check(f"tools[{place}]", definition, Mapping)
        try:
            text = tools_text(definitions)
        except InvalidTypeError:
            raise
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidTypeError(f"tools: not JSON: {type(exc).__name__}") from None
        return replace(self, definitions=text)

    @property
    def state_value(self) -> object | None:
        """The state as plain values, the caller's own copy; None without state."""
        return None if self.state_json is None else json.loads(self.state_json)

    def parts(self) -> PromptParts:
        """The rendered parts, as they travel with a step."""
        system, state = self.system_messages, tuple[ChatMessage, ...]()
        placed = self.state_text is not None and self.state_placement == "system"
        if self.state_text is not None and placed:
            system = (*system, state_system_message(self.state_text))
        elif self.state_text is not None:
            state = (state_message(self.state_text),)
        return PromptParts(
            system=system,
            state=state,
            guardrails=() if self.output_tag is None else (output_tag_message(self.output_tag),),
            prefill=self.prefill,
            thinking=self.thinking,
            state_in_system=placed,
        )

    def compile(
        self,
        target: str | None = None,
        model: Model | str | None = None,
        *,
        cache: Cache = False,
        bound_models: Iterable[ModelPrefix] = (),
    ) -> Payload:
        """The request for a provider, with no run and no bus (P.A.2, P.A.3).

        Args:
            target: the provider's form; without it the model's provider decides (P.A.7).
            model: the model of the call, or its id; without it no prefill is sent as such.
            cache: asks for a cache breakpoint behind the history, before the tail (P.E.4).
            bound_models: models that bind their thinking to the prefix, beside those of D.F.8.

        Raises:
            InvalidTypeError: there is no such target; the message lists those there are.
            EmptyHistoryError: there is no message but system ones.
        """
        parts = self.parts()
        history = start_rendering(target, model)
        named = Model(history.target.provider, model, 0, 0) if isinstance(model, str) else model
        return assemble(
            Request(
                history=history.extend(self.messages),
                system=parts.system,
                tail=(*parts.state, *parts.guardrails),
                prefill=parts.prefill,
                takes_prefill=not prefill_degrades(named, parts.thinking, bound_models),
                tools=self.definitions,
                cache=cache,
            )
        )


def parts_of(prompt: Prompt | PromptParts | None) -> PromptParts | None:
    """The rendered parts of what a caller gave as its prompt.

    Raises:
        InvalidTypeError: it is no prompt.
    """
    if prompt is None:
        return None
    given = prompt.parts() if isinstance(prompt, Prompt) else prompt
    if not isinstance(given, PromptParts):  # pyright: ignore[reportUnnecessaryIsInstance]  (callers are not all typed)
        raise InvalidTypeError(f"prompt must be a Prompt, not {type(given).__name__}")
    return replace(
        given,
        system=tuple(map(normalise, given.system)),
        state=tuple(map(normalise, given.state)),
        guardrails=tuple(map(normalise, given.guardrails)),
        prefill=None if given.prefill is None else clean_text(given.prefill),
    )


def _check(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise InvalidTypeError(f"{name}: expected {kind.__name__}, not {type(value).__name__}")


def _read(messages: Iterable[GivenMessage]) -> tuple[ChatMessage, ...]:
    return tuple(map(_frozen, read_given(messages)))


def _frozen(message: ChatMessage) -> ChatMessage:
    """The message with tuples where its maker put lists, which others could change."""
    content = tuple(
        replace(part, content=tuple(part.content))
        if isinstance(part, ToolResult) and type(part.content) is not tuple
        else part
        for part in message.content
    )
    same = type(message.content) is tuple and all(a is b for a, b in zip(content, message.content, strict=True))
    return message if same else replace(message, content=content)
