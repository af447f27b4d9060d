"""A request and the payload it becomes.

Nothing of ours is in a body: it holds messages, system and tools as the provider wants them, never ``model`` or
a limit of the output, which the caller sets (P.A.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from contextbus.core import json_text
from contextbus.core.breakpoints import (
    Breakpoints,
    Foreign,
    Layer,
    Overlay,
    choose_breakpoints,
    put_breakpoints,
    write_system,
)
from contextbus.core.frozen import freeze, thaw
from contextbus.core.guardrails import prefill_message
from contextbus.core.rendering import Rendering
from contextbus.core.settled import Settled
from contextbus.core.targets import find_target
from contextbus.core.targets.tools import tools_text, write_former_tools, write_tools
from contextbus.core.wire import Repair, Written
from contextbus_protocol.chat import Cache, ChatMessage
from contextbus_protocol.errors import EmptyHistoryError, InvalidRequestError
from contextbus_protocol.values import Model


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a model call consists of (P.A.3).

    ``history`` is folded; append blocks of earlier steps are in it where they were placed.  ``blocks`` are this step's
    own, behind the history; ``tail`` is what follows them.  ``system`` comes behind the history's leading system
    messages.  ``prefill`` is what the answer is to begin with (P.C.2); it ends the tail as an instruction, listed as
    ``prefill``, where the target takes none or ``takes_prefill`` is False, for the model thinks or binds its thinking
    (P.C.4).  ``tools`` is the JSON text of a list of definitions in any provider's shape.  ``cache`` asks for a
    breakpoint behind the blocks, or behind the history where there are none (P.E.4).
    """

    history: Rendering
    system: tuple[ChatMessage, ...] = ()
    blocks: tuple[ChatMessage, ...] = ()
    tail: tuple[ChatMessage, ...] = ()
    prefill: str | None = None
    takes_prefill: bool = True
    tools: str | None = None
    cache: Cache = False


class Payload(msgspec.Struct, frozen=True):
    """One provider's request; immutable, every way out of it is safe to keep.

    ``fields`` are the members before the messages; ``lead``, ``settled`` and ``last`` are the messages, which the body
    holds under ``list_name``.  None of them holds a breakpoint: every way out puts in those that are sent (P.E.4).
    ``lost`` counts breakpoints of this request's own system messages and tools that the provider does not take,
    ``prefilled`` tells that the last message is a prefill.
    """

    target: str
    list_name: str
    fields: tuple[tuple[str, Written], ...]
    lead: tuple[bytes, ...]
    settled: Settled
    last: tuple[Written, ...]
    rendering: Rendering
    former_tools: bool = False
    lost: int = 0
    prefilled: bool = False

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """Every repair that made the history fit the provider (P.E.2); breakpoints dropped or raised come last."""
        count = self.rendering.count
        added = (Repair("missing-tools", count),) if self.former_tools else ()
        breakpoints = (Repair("breakpoint", count),) * (self.lost + self.breakpoints().repaired)
        return (*self.rendering.repairs, *added, *breakpoints)

    def breakpoints(self, **extra: object) -> Breakpoints:
        """The breakpoints that are sent; ``extra`` as in ``chunks``: those that it holds count (anthropic.A15)."""
        fields = {key: written for key, written in self.fields if key not in extra}
        return choose_breakpoints(fields, self.settled.marks, self.last, self._foreign(extra))

    def _foreign(self, extra: Mapping[str, object]) -> Foreign:
        """The breakpoints that the caller's members hold."""
        read = self.rendering.target.read_breakpoint

        def of(member: str) -> tuple[Cache, ...]:
            items = [json_text.as_object(item) for item in json_text.as_list(extra.get(member)) or ()]
            return tuple(cache for item in items if item is not None and (cache := read(item)))

        return Foreign(of("tools"), of("system"), read(extra))

    def chunks(self, **extra: object) -> tuple[bytes, ...]:
        """The body as pieces of JSON, flat in the length of the history; ``extra`` are members of the caller's.

        An extra member replaces one of the body's with its name.

        Raises:
            InvalidRequestError: the list of messages is among them, or they make the model think behind a prefill.
        """
        if self.list_name in extra:
            raise InvalidRequestError(f"{self.list_name} are the payload's; use payload.copy() for a body to change")
        if self.prefilled and self.rendering.target.thinks(extra):
            raise InvalidRequestError("a prefill does not go with thinking; set thinking=True on the guardrails")
        sent = self.breakpoints(**extra)
        fields = [(key, json) for key, json in self._fields(sent) if key not in extra]
        kept = [b"%b:%b," % (json_text.quote(key), json) for key, json in fields]
        more = b"," + json_text.encode(extra)[1:] if extra else b"}"
        lead, last = b",".join(self.lead), b",".join(self._last(sent))
        head = b'{%b"%b":[%b' % (b"".join(kept), self.list_name.encode(), lead)
        if lead and (last or len(self.settled)):
            head += b","
        if last and len(self.settled):
            last = b"," + last
        return (head, *self.settled.pieces(self._overlays(sent, "settled")), last + b"]" + more)

    def json(self, **extra: object) -> bytes:
        """The body as JSON, for an SDK's ``content=``; ``extra`` as in ``chunks``."""
        return b"".join(self.chunks(**extra))

    @property
    def body(self) -> dict[str, object]:
        """The body as a dict for an SDK.

        The dict and its list of messages are the caller's to change.  The messages are shared with later steps and
        read-only: changing one raises ``TypeError``.
        """
        sent = self.breakpoints()
        body: dict[str, object] = {key: msgspec.json.decode(json) for key, json in self._fields(sent)}
        lead, last = ([freeze(msgspec.json.decode(json)) for json in part] for part in (self.lead, self._last(sent)))
        messages = self.settled.dicts(self._overlays(sent, "settled"))
        messages[:0] = lead
        messages += last
        body[self.list_name] = messages
        return body

    def _fields(self, sent: Breakpoints) -> list[tuple[str, bytes]]:
        layers: tuple[Layer, ...] = ("tools", "system")
        put = {str(layer): self._overlays(sent, layer).get(0, ()) for layer in layers}
        return [(key, put_breakpoints(written.json, put.get(key, ()))) for key, written in self.fields]

    def _last(self, sent: Breakpoints) -> list[bytes]:
        put = self._overlays(sent, "last")
        return [put_breakpoints(written.json, put.get(index, ())) for index, written in enumerate(self.last)]

    def _overlays(self, sent: Breakpoints, layer: Layer) -> dict[int, list[Overlay]]:
        return sent.of(layer, self.rendering.target.write_breakpoint)

    def copy(self) -> dict[str, object]:
        """The body as plain dicts and lists, all the caller's; its cost grows with the history."""
        return {key: thaw(value) for key, value in self.body.items()}


def start_rendering(target: str | None, model: Model | str | None = None) -> Rendering:
    """An empty history for a target and a model; without a name the model's provider decides (P.A.7).

    Raises:
        InvalidTypeError: there is no such target; the message lists those there are.
    """
    return Rendering(target=find_target(target, model))


def assemble(request: Request) -> Payload:
    """The payload of a request, in the order of P.A.3: a step costs its new messages and the open group.

    Raises:
        EmptyHistoryError: there is no message but system ones (P.E.15).
        InvalidTypeError: a tool definition cannot be read.
    """
    rendering = request.history
    target = rendering.target
    if request.blocks:
        rendering = rendering.extend(request.blocks)
    rendering = rendering.mark_end(request.cache)
    if request.tail:
        rendering = rendering.extend(request.tail)
    if rendering.empty:
        raise EmptyHistoryError("there is no message to send but system ones; append a user message first")
    prefill = (request.prefill or "").rstrip()
    prefilled = bool(prefill) and request.takes_prefill and target.takes_prefill
    if prefill and not prefilled:
        repairs = rendering.repairs.extend((Repair("prefill", rendering.count),))
        rendering = replace(rendering, repairs=repairs).append(prefill_message(prefill))
    finished = rendering.finish(prefilled=prefilled)
    written = [write_system(message, target) for message in request.system]
    system = (*finished.system, *[item for item, _ in written if item is not None])
    tools = write_tools(request.tools, target) if request.tools is not None else None
    lost = sum(count for _, count in written)
    if tools is not None and not target.takes_breakpoints:
        lost += len(tools.marks)
        tools = Written(tools.json)
    former_tools = tools is None and target.needs_tools and bool(finished.tools)
    if former_tools:
        tools = Written(write_former_tools(finished.tools, target))
    last = target.lay_out(finished.group)
    return Payload(
        target=target.name,
        list_name=target.list_name,
        fields=tuple(target.fields(system, tools).items()),
        lead=target.lead(system),
        settled=finished.settled,
        last=(*last, Written(target.prefill(prefill))) if prefilled else last,
        rendering=finished,
        former_tools=former_tools,
        lost=lost,
        prefilled=prefilled,
    )


def render(
    messages: Iterable[ChatMessage],
    target: str | None,
    model: Model | str | None = None,
    tools: Iterable[Mapping[str, object]] | str | None = (),
) -> Payload:
    """The payload of plain messages, with no run and no bus (P.E.10).

    Raises:
        EmptyHistoryError: there is no message but system ones (P.E.15).
        InvalidTypeError: there is no such target, or a tool definition cannot be read.
    """
    history = start_rendering(target, model).extend(messages)
    return assemble(Request(history=history, tools=tools_text(tools)))


def interleave(messages: Sequence[ChatMessage], blocks: Iterable[tuple[int, ChatMessage]]) -> tuple[ChatMessage, ...]:
    """Source messages with blocks at their positions; a block at n stands behind the first n messages.

    Blocks come in the order of their positions; one beyond the end stands at the end.
    """
    result: list[ChatMessage] = []
    done = 0
    for position, block in blocks:
        stop = max(done, min(position, len(messages)))
        result += messages[done:stop]
        result.append(block)
        done = stop
    result += messages[done:]
    return tuple(result)
