"""Valid requests of OpenAI Responses with every kind of item, and their form up to the documented defaults."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import strategies as st

Item = dict[str, Any]
Draw = st.DrawFn

WORDS = st.sampled_from(["hello", " ", "two\nlines ", "\U0001f468‍\U0001f469", "</late_result><system>", "\x01", "ü"])
_BREAKPOINT = {"mode": "explicit", "ttl": "12h"}
_STATUS = st.sampled_from(["in_progress", "completed", "incomplete"])
_CALLER = st.sampled_from([{"type": "direct"}, {"type": "program", "caller_id": "p"}])
_ANNOTATION: Item = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
_LOGPROB: Item = {"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}


def optional(draw: Draw, **members: st.SearchStrategy[Any]) -> Item:
    """Some of the members."""
    return {name.strip("_"): draw(values) for name, values in members.items() if draw(st.booleans())}


@st.composite
def texts(draw: Draw) -> Item:
    return {"type": "input_text", "text": draw(WORDS), **optional(draw, prompt_cache_breakpoint=st.just(_BREAKPOINT))}


@st.composite
def images(draw: Draw, *, in_output: bool = False) -> Item:
    urls = st.sampled_from(["data:image/png;base64,AAAA", "https://example.org/i.png", "data:image/svg+xml,<svg/>"])
    place = draw(st.one_of(st.builds(lambda u: {"image_url": u}, urls), st.just({"file_id": "file-1"})))
    detail = {"detail": draw(st.sampled_from(["auto", "low", "high", "original"]))}
    asked = detail if not in_output or draw(st.booleans()) else {}
    return {"type": "input_image", **place, **asked, **optional(draw, prompt_cache_breakpoint=st.just(_BREAKPOINT))}


@st.composite
def files(draw: Draw) -> Item:
    places: list[Item] = [
        {"file_data": "data:application/pdf;base64,AAAA"},
        {"file_data": "data:text/plain;charset=utf-8;base64,AAAA", "filename": "a.txt"},
        {"file_data": "AAAA", "filename": "a.bin"},
        {"file_url": "https://example.org/a.pdf"},
        {"file_id": "file-2"},
    ]
    more = optional(draw, filename=st.just("b.pdf"), detail=st.sampled_from(["auto", "low", "high"]))
    return {"type": "input_file", **more, **draw(st.sampled_from(places))}


PARTS = st.lists(st.one_of(texts(), images(), files()), min_size=1, max_size=3)
OUTPUT_PARTS = st.lists(st.one_of(texts(), images(in_output=True), files()), min_size=1, max_size=3)
OUTPUTS = st.one_of(WORDS, st.just(""), OUTPUT_PARTS)
CUSTOM_OUTPUTS = st.one_of(WORDS, st.just(""), PARTS)


@st.composite
def asked(draw: Draw, roles: tuple[str, ...] = ("user",)) -> Item:
    """A message of the user or of the host."""
    message: Item = {"role": draw(st.sampled_from(roles)), **optional(draw, type=st.just("message"))}
    if draw(st.booleans()):
        return {**message, "content": draw(WORDS)}
    return {**message, "content": draw(PARTS), **optional(draw, status=_STATUS)}


HOST_ITEMS = st.sampled_from(
    [
        {"type": "mcp_approval_response", "approval_request_id": "mcpr", "approve": True, "reason": None},
        {"type": "additional_tools", "role": "developer", "tools": []},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"type": "tool_search_output", "execution": "client", "call_id": "ts", "tools": []},
    ]
)
NATIVE_ITEMS = st.sampled_from(
    [
        {
            "type": "web_search_call",
            "id": "ws",
            "status": "completed",
            "action": {"type": "search", "query": "q", "queries": ["q"]},
        },
        {"type": "file_search_call", "id": "fs", "status": "completed", "queries": ["q"], "results": None},
        {
            "type": "code_interpreter_call",
            "id": "ci",
            "status": "completed",
            "code": "1",
            "container_id": "c",
            "outputs": [{"type": "logs", "logs": "1"}],
        },
        {"type": "image_generation_call", "id": "ig", "status": "completed", "result": "AAAA"},
        {"type": "mcp_list_tools", "id": "ml", "server_label": "s", "tools": [{"name": "f", "input_schema": {}}]},
        {"type": "mcp_approval_request", "id": "mcpr", "arguments": "{}", "name": "f", "server_label": "s"},
        {
            "type": "mcp_call",
            "id": "mc",
            "arguments": "{}",
            "name": "f",
            "server_label": "s",
            "output": "o",
            "status": "completed",
        },
        {"type": "tool_search_call", "id": "tc", "arguments": {"q": 1}, "execution": "server", "call_id": None},
        {"type": "tool_search_output", "id": "to", "execution": "server", "tools": []},
        {"type": "program", "id": "pr", "call_id": "p", "code": "1", "fingerprint": "f"},
        {"type": "program_output", "id": "po", "call_id": "p", "result": "1", "status": "completed"},
        {"type": "item_reference", "id": "msg_0"},
    ]
)
_PAYLOADS: dict[str, Item] = {
    "computer_call": {"action": {"type": "click", "button": "left", "x": 1, "y": 2}},
    "local_shell_call": {"action": {"type": "exec", "command": ["ls"], "env": {}}},
    "shell_call": {"action": {"commands": ["ls"], "timeout_ms": 5}},
    "apply_patch_call": {"operation": {"type": "create_file", "path": "a", "diff": "+b"}},
}


@st.composite
def calls(draw: Draw, number: int, *, reasoned: bool) -> tuple[Item, Item]:
    """A call and its output."""
    kinds = ["function_call"] * 4 + ["custom_tool_call", "shell_call", "apply_patch_call"]
    kind = draw(st.sampled_from(kinds + (["computer_call", "local_shell_call"] if reasoned else [])))
    call: Item = {"type": kind, "call_id": f"call|{number}", **_PAYLOADS.get(kind, {})}
    output: Item = {"type": f"{kind}_output", "call_id": call["call_id"]}
    if kind in ("computer_call", "local_shell_call") or (reasoned and draw(st.booleans())):
        call["id"] = f"fc_{number}"
    if kind in ("function_call", "custom_tool_call"):
        call["name"] = draw(st.sampled_from(["f", "get-it", "n" * 64]))
        call |= optional(draw, caller=_CALLER, namespace=st.just("ns"))
        given = draw(OUTPUTS if kind == "function_call" else CUSTOM_OUTPUTS)
        output |= {"output": given, **optional(draw, caller=_CALLER, id=st.just(f"fco_{number}"))}
    match kind:
        case "function_call":
            call["arguments"] = draw(st.sampled_from(['{"q": "ü"}', "{ }", '{"a":[1,2.5,null]}']))
            call |= optional(draw, status=_STATUS, async_=st.booleans())
            output |= optional(draw, status=_STATUS, name=st.just("f"), namespace=st.just("ns"))
        case "custom_tool_call":
            call["input"] = draw(st.sampled_from(["raw {", "", "*** Begin"]))
        case "computer_call":
            check = {"id": "c", "code": None}
            call |= {"pending_safety_checks": draw(st.sampled_from([[], [check]])), "status": draw(_STATUS)}
            place = draw(st.sampled_from([{"image_url": "data:image/png;base64,AAAA"}, {"file_id": "file-3"}]))
            output["output"] = {"type": "computer_screenshot", **place}
            output |= optional(draw, acknowledged_safety_checks=st.just([check]), status=_STATUS)
        case "local_shell_call":
            call["status"] = draw(_STATUS)
            del output["call_id"]
            output |= {"id": draw(st.sampled_from([call["id"], call["call_id"]])), "output": draw(WORDS)}
        case "shell_call":
            call |= optional(draw, status=_STATUS, caller=_CALLER, environment=st.just({"type": "local"}))
            ended = draw(st.sampled_from([{"type": "timeout"}, {"type": "exit", "exit_code": 1}]))
            output["output"] = [{"stdout": draw(WORDS), "stderr": "", "outcome": ended}] * draw(st.integers(0, 2))
            output |= optional(draw, max_output_length=st.just(9), status=_STATUS)
        case _:
            call["status"] = draw(st.sampled_from(["in_progress", "completed"]))
            output |= {"status": draw(st.sampled_from(["failed", "completed"])), **optional(draw, output=WORDS)}
    return call, output


@st.composite
def reasonings(draw: Draw, number: int) -> Item:
    summary = [{"type": "summary_text", "text": text} for text in draw(st.lists(WORDS, max_size=2))]
    return {
        "type": "reasoning",
        "id": f"rs_{number}",
        "summary": summary,
        **optional(
            draw,
            encrypted_content=st.sampled_from(["gAAAA==", None]),
            content=st.just([{"type": "reasoning_text", "text": "hm"}]),
            status=_STATUS,
        ),
    }


@st.composite
def spoken(draw: Draw, number: int, *, reasoned: bool) -> Item:
    """A message of the assistant."""
    phase = optional(draw, phase=st.sampled_from(["commentary", "final_answer"]))
    if not reasoned or draw(st.booleans()):
        return {"role": "assistant", "content": draw(WORDS), **phase, **optional(draw, type=st.just("message"))}
    parts: list[Item] = []
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            parts.append({"type": "refusal", "refusal": draw(WORDS)})
            continue
        notes = optional(draw, logprobs=st.sampled_from([[], [_LOGPROB]]))
        notes["annotations"] = draw(st.sampled_from([[], [_ANNOTATION]]))
        parts.append({"type": "output_text", "text": draw(WORDS), **notes})
    head = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": draw(_STATUS)}
    return {**head, "content": parts, **phase}


@st.composite
def turns(draw: Draw, start: int) -> list[Item]:
    """What the assistant wrote in a row, and its outputs behind it in any order."""
    items: list[Item] = []
    outputs: list[Item] = []
    reasoned = False
    for number in range(start, start + draw(st.integers(1, 5))):
        if draw(st.integers(0, 2)) == 0:
            reasoned = True
            items += [draw(reasonings(2 * number + extra)) for extra in range(draw(st.integers(1, 2)))]
        match draw(st.integers(0, 3)):
            case 0:
                items.append(draw(spoken(number, reasoned=reasoned)))
            case 1:
                items.append(draw(NATIVE_ITEMS))
            case _:
                call, output = draw(calls(number, reasoned=reasoned))
                items.append(call)
                outputs.append(output)
    return [*items, *draw(st.permutations(outputs))]


_FUNCTIONS = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "name": st.sampled_from(["f", "g-1"]),
        "parameters": st.sampled_from([None, {"type": "object", "properties": {"q": {"type": "string"}}}]),
        "strict": st.sampled_from([True, False, None]),
    },
    optional={
        "description": st.just("d"),
        "defer_loading": st.booleans(),
        "output_schema": st.just({"type": "object"}),
        "allowed_callers": st.just(["direct"]),
        "async": st.booleans(),
    },
)
_NATIVE_TOOLS = st.sampled_from(
    cast(
        "list[Item]",
        [
            {"type": "web_search", "search_context_size": "low"},
            {"type": "file_search", "vector_store_ids": ["v"]},
            {"type": "mcp", "server_label": "s", "server_url": "https://example.org"},
            {"type": "custom", "name": "c", "description": "d", "format": {"type": "text"}},
            {"type": "custom", "name": "c"},
            {"type": "local_shell"},
            {"type": "namespace", "name": "n", "description": "d", "tools": []},
        ],
    )
)


@st.composite
def requests(draw: Draw) -> Item:
    """A request that is right by the rules and by the SDK's types."""
    body: Item = optional(draw, instructions=WORDS, tools=st.lists(_FUNCTIONS | _NATIVE_TOOLS, min_size=1, max_size=3))
    if draw(st.integers(0, 9)) == 0:
        return {**body, "input": draw(WORDS)}
    items: list[Item] = draw(st.lists(asked(("system", "developer")), max_size=2))
    if draw(st.integers(0, 3)) == 0:
        items.append({"type": "compaction", "encrypted_content": "gAAAA==", **optional(draw, id=st.just("cmp_1"))})
    else:
        items.append(draw(asked()))
    for number in range(draw(st.integers(0, 4))):
        match draw(st.integers(0, 3)):
            case 0:
                items.append(draw(asked(("user", "user", "developer"))))
            case 1:
                items.append(draw(HOST_ITEMS))
            case _:
                items += draw(turns(10 * number))
    if draw(st.integers(0, 9)) == 0:
        items.append({"type": "compaction_trigger"})
    return {**body, "input": items}


def normal(body: Item) -> Item:
    """The body up to the defaults that the importer's docstring names."""
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return {**body, "input": [_normal(item) for item in items]}


def _normal(item: Item) -> Item:
    made = dict(item)
    kind = made.get("type")
    if kind == "message" and "id" not in made:
        del made["type"]
    if kind in (None, "message", "reasoning") or str(kind).endswith(("_call", "_call_output")):
        modelled = kind not in {"tool_search_call", "file_search_call"}
        made = {key: value for key, value in made.items() if value is not None or not modelled}
    for name in ("content", "output"):
        parts = made.get(name)
        if kind != "reasoning" and isinstance(parts, list):
            made[name] = _normal_parts(cast("list[Item]", parts), whole="status" in made and name == "content")
    return made


def _normal_parts(parts: list[Item], *, whole: bool) -> str | list[Item]:
    if len(parts) == 1 and not whole and set(parts[0]) == {"type", "text"} and parts[0]["type"] == "input_text":
        return str(parts[0]["text"])
    made: list[Item] = []
    for part in parts:
        named = {"filename": "document", **part} if "file_data" in part else dict(part)
        if named.get("logprobs") == []:
            del named["logprobs"]
        made.append(named)
    return made
