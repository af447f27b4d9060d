"""What a call replaces, and how the new list is put together (C.D, C.E, vectors G and B)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.compacting import (
    LABEL,
    MEDIA,
    Counted,
    Message,
    Scripted,
    assistant,
    assistant_of,
    b1,
    b2,
    call,
    call_part,
    compact,
    compacted,
    range_of,
    refused,
    request_part,
    res,
    response_part,
    result_part,
    system,
    tool_of,
    user,
)

import contextbus.client as contextbus
from contextbus.client import RetentionPolicy, Usage
from contextbus.core.history import digest_message
from contextbus.summarisers.interface import Summary, SummaryRequest
from contextbus_protocol.compaction import SummaryPart

BLOCK = contextbus.user("<context>\nfacts\n</context>")
OWN = (digest_message(BLOCK),)


async def ranges(messages: list[Any], keeps: range, **options: Any) -> list[tuple[int, int] | None]:
    """The ranges for each number of messages to keep; the call's list stands at the same places again."""
    return [await range_of(messages, keep, **options) for keep in keeps]


@pytest.mark.rule("C.D.1", "C.D.2", "C.D.3", "C.D.9", "C.D.10")
async def test_g1_plain_messages_and_leading_system_ones() -> None:
    plain = [user(), assistant(), user(), assistant(), user()]
    assert await ranges(plain, range(1, 6)) == [(0, 4), (0, 3), (0, 2), (0, 1), None]
    assert await range_of([system(), *plain], 4) == (1, 2)
    assert await range_of([system(), system()], 1) is None


@pytest.mark.rule("C.D.4", "C.B.5")
async def test_g2_a_later_system_message_and_media_protect_what_follows() -> None:
    assert await range_of([user(), assistant(), system(), user(), assistant(), user()], 1) == (0, 2)
    tail = [user(), assistant(), user()]
    assert await range_of([user(), assistant(), MEDIA, *tail], 1, count_tokens=len) == (0, 2)
    assert await range_of([MEDIA, *tail], 1, count_tokens=len) is None


@pytest.mark.rule("C.D.5", "C.D.7", "C.D.8")
async def test_g3_overlapping_calls_and_an_approval() -> None:
    messages = [
        *(user(), assistant(), call("a"), assistant_of(call_part("b"), request_part("b")), res("a")),
        *(tool_of(response_part("b", approved=False), result_part("b")), user()),
    ]
    assert await ranges(messages, range(1, 8)) == [(0, 6), (0, 2), (0, 2), (0, 2), (0, 2), (0, 1), None]


@pytest.mark.rule("C.D.6")
async def test_g4_what_waits_for_consent_stays_with_all_behind_it() -> None:
    waiting = assistant_of(call_part("p"), request_part("p"))
    assert await range_of([user(), assistant(), waiting, user()], 1) == (0, 2)
    assert await range_of([waiting, user(), assistant(), user(), assistant()], 1) is None


@pytest.mark.rule("C.D.11", "C.E.4", "C.E.5", "C.E.8")
async def test_g5_closed_exchanges_of_the_current_turn_go_and_the_request_is_said_again() -> None:
    messages = [user("do it"), *(m for n in range(6) for m in (call(f"c{n}"), res(f"c{n}")))]
    assert await ranges(messages, range(1, 5)) == [(0, 11), (0, 11), (0, 9), (0, 9)]
    model = Scripted()
    result = await compacted(messages, model=model, keep_last_messages=2)
    assert result.messages[1] is messages[0]
    assert result.messages[2:] == tuple(messages[11:])
    assert [m.role for m in model.asked[0].messages] == ["user", *("assistant", "tool") * 5]


@pytest.mark.rule("C.D.6", "C.D.7")
async def test_g6_consent_is_no_result() -> None:
    asked = assistant_of(call_part("c"), request_part("c"))
    consent = tool_of(response_part("c"))
    assert await range_of([user(), asked, consent, user(), assistant(), user()], 1) == (0, 1)
    done = [user(), asked, consent, res("c"), user(), assistant(), user()]
    assert await ranges(done, range(1, 7)) == [(0, 6), (0, 5), (0, 4), (0, 1), (0, 1), (0, 1)]


@pytest.mark.rule("C.D.13")
async def test_g7_an_id_used_again_is_another_call() -> None:
    messages = [user(), call("d"), res("d"), assistant(), call("d"), res("d"), user(), assistant()]
    found = await ranges(messages, range(1, 8))
    assert found == [(0, 7), (0, 6), (0, 4), (0, 4), (0, 3), (0, 1), (0, 1)]


@pytest.mark.rule("C.D.12", "C.D.14")
async def test_g8_orphans_and_calls_with_their_result_constrain_nothing() -> None:
    assert await range_of([user(), res("orphan"), user(), assistant()], 1) == (0, 3)
    both = assistant_of(call_part("e"), result_part("e"))
    assert await range_of([user(), both, user(), assistant()], 1) == (0, 3)


@pytest.mark.rule("C.D.16")
async def test_g9_a_dead_call_blocks_nothing() -> None:
    messages = [user(), call("a"), user(), assistant(), user(), assistant()]
    assert [await range_of(messages, keep) for keep in (1, 4, 5)] == [(0, 5), (0, 2), (0, 1)]
    assert await ranges(messages, range(1, 6), long_running=["t"]) == [(0, 1)] * 5
    messages[1] = assistant_of(call_part("a"), request_part("a"))
    assert await ranges(messages, range(1, 6)) == [(0, 1)] * 5


@pytest.mark.rule("C.E.6", "C.E.9", "C.X.1")
async def test_g10_blocks_of_ours_leave_with_the_range_and_reach_no_summariser() -> None:
    ours = [user("one"), assistant("two"), user("three"), BLOCK, assistant("four")]
    model = Scripted()
    result = await compacted(ours, model=model, keep_last_messages=1, own_blocks=OWN)
    assert (result.replaced_range.start, result.replaced_range.end) == (0, 4)
    assert result.messages[1] is ours[2]
    assert len(result.messages) == 3
    assert [m.role for m in model.asked[0].messages] == ["user", "assistant", "user"]
    two = await compacted(ours, keep_last_messages=2, own_blocks=OWN)
    assert (two.replaced_range.end, two.messages[1:]) == (2, tuple(ours[2:]))
    assert (await compacted(ours, keep_last_messages=3, own_blocks=OWN)).replaced_range.end == 1
    as_dict = [*ours[:3], {"role": "user", "content": "<context>\nfacts\n</context>"}, ours[4]]
    assert (await compacted(as_dict, keep_last_messages=2, own_blocks=OWN)).replaced_range.end == 2


@pytest.mark.rule("C.D.13", "C.D.16")
async def test_g11_and_g12_a_result_answers_the_open_call_before_the_dead_one() -> None:
    eleven = [user(), call("d"), user(), call("d"), res("d"), user(), assistant()]
    assert await ranges(eleven, range(1, 6)) == [(0, 6), (0, 5), (0, 3), (0, 3), (0, 2)]
    twelve = [
        *(user(), assistant_of(call_part("d"), call_part("b")), res("b"), call("d"), res("d")),
        *(assistant(), user()),
    ]
    assert await ranges(twelve, range(1, 7)) == [(0, 6), (0, 5), (0, 3), (0, 3), (0, 1), (0, 1)]


@pytest.mark.rule("C.F.2", "C.F.3", "C.G.1", "C.G.8", "C.G.10")
async def test_room_allowance_and_the_final_count() -> None:
    model = Scripted("Short.")
    result = await compacted(b1(), model=model, target_tokens=100, keep_last_messages=2)
    assert (result.replaced_range.start, result.replaced_range.end) == (0, 2)
    assert (result.tokens.before, result.tokens.after, model.asked[0].max_output_tokens) == (234, 35, 66)
    assert (result.status, result.summary, result.usage) == ("compacted", "Short.", None)
    none = Scripted("Short.")
    refusal = await refused(b1(), model=none, target_tokens=34, keep_last_messages=2)
    assert (refusal.reason, refusal.usage, none.asked, refusal.required_tokens) == ("protected-history", None, [], 35)
    one = Scripted("Short.")
    assert (await compacted(b1(), model=one, target_tokens=35, keep_last_messages=2)).tokens.after == 35
    assert one.asked[0].max_output_tokens == 1
    wide = Scripted("Short.")
    await compacted(b1(), model=wide, target_tokens=5000, keep_last_messages=2)
    assert wide.asked[0].max_output_tokens == 2048


@pytest.mark.rule("C.E.1", "C.E.4")
async def test_the_request_stands_behind_its_summary() -> None:
    model = Scripted("Found k.")
    result = await compacted(b2(), model=model, target_tokens=100, keep_last_messages=2)
    assert (result.replaced_range.start, result.replaced_range.end) == (0, 3)
    roles = [m["role"] for m in result.messages if isinstance(m, dict)]
    assert roles == ["user", "user", "assistant", "tool"]
    assert result.messages[0] == {"role": "user", "content": f"{LABEL}Found k."}
    assert result.tokens.before == 170
    assert model.asked[0].max_output_tokens == 100 - 81


@pytest.mark.rule("C.X.1", "C.C.7")
async def test_recent_tokens_never_split_a_call_from_its_result() -> None:
    async def end(tokens: int) -> int | None:
        keep = RetentionPolicy(keep_recent_tokens=tokens)
        result = await compact(b2(), model=Scripted(), target_tokens=5000, keep=keep)
        return result.replaced_range.end if result.status == "compacted" else None

    assert [await end(t) for t in (170, 171, 5000)] == [None] * 3
    assert [await end(t) for t in (161, 169)] == [1, 1]
    assert [await end(t) for t in (57, 160, 1, 56)] == [3] * 4


@pytest.mark.rule("C.X.1")
async def test_turns_and_a_share_of_the_window_are_policies_too() -> None:
    messages = [user("a"), assistant(), user("b"), assistant(), user("c"), assistant()]
    for turns, expected in ((1, 4), (2, 2), (3, None), (4, None)):
        result = await compact(
            messages, model=Scripted(), target_tokens=500, keep=RetentionPolicy(keep_last_turns=turns)
        )
        assert getattr(getattr(result, "replaced_range", None), "end", None) == expected
    counter = Counted(lambda given: 10 * len(given))
    # Half of 80 is 40; half of that is for the summary: two messages of ten tokens stay.
    result = await compacted(messages, keep=RetentionPolicy(keep_ratio=0.5), context_window=80, count_tokens=counter)
    assert result.replaced_range.end == 4
    both = RetentionPolicy(keep_ratio=0.5, keep_last_turns=2)
    assert (await compacted(messages, keep=both, context_window=80, count_tokens=counter)).replaced_range.end == 2


@pytest.mark.rule("C.E.1", "C.E.2", "C.E.3", "C.E.7")
async def test_the_new_list_is_rules_summary_request_and_what_stays() -> None:
    messages = [system("one"), system("two"), user("find it"), call("k"), res("k"), call("l"), res("l")]
    result = await compacted(messages, model=Scripted("  It was found. \n"), keep_last_messages=2)
    assert result.messages[2] == {"role": "user", "content": f"{LABEL}It was found."}
    kept = (messages[0], messages[1], messages[2], messages[5], messages[6])
    there = (*result.messages[:2], *result.messages[3:])
    assert all(ours is theirs for ours, theirs in zip(there, kept, strict=True))
    systems = [m for m in result.messages if isinstance(m, dict) and m["role"] == "system"]
    assert systems == messages[:2]


@pytest.mark.rule("C.E.4", "C.E.6")
async def test_nothing_is_said_again_where_the_last_request_stays_anyway() -> None:
    result = await compacted([user("a"), assistant(), user("b"), assistant()], keep_last_messages=2)
    assert len(result.messages) == 3
    no_user = await compacted([assistant("a"), assistant("b"), assistant("c")], keep_last_messages=1)
    assert len(no_user.messages) == 2


@pytest.mark.rule("C.E.6", "C.G.14")
async def test_an_earlier_summary_is_summarised_like_any_message_and_never_said_again() -> None:
    first = await compacted([assistant("a"), assistant("b"), assistant("c")], keep_last_messages=1)
    longer = [*first.messages, assistant("d"), assistant("e")]
    model = Scripted("Both.")
    second = await compacted(longer, model=model, keep_last_messages=1, own_blocks=first.own_blocks)
    assert (second.replaced_range.start, second.replaced_range.end) == (0, 3)
    assert "Short." in model.asked[0].prompt
    assert [m["content"] for m in second.messages if isinstance(m, dict)] == [f"{LABEL}Both.", "e"]
    assert set(first.own_blocks) < set(second.own_blocks)


@pytest.mark.rule("C.F.4")
async def test_the_summariser_gets_exactly_the_range_without_a_providers_own_data() -> None:
    sealed = assistant_of(
        {"type": "reasoning", "text": "thought", "providerOptions": {"anthropic": {"signature": "c2VjcmV0"}}},
        {"type": "reasoning", "text": "", "providerOptions": {"anthropic": {"redactedData": "c2VhbGVk"}}},
        {"type": "text", "text": "said", "providerOptions": {"anthropic": {"cacheControl": {"type": "ephemeral"}}}},
    )
    model = Scripted()
    await compacted([system("rules"), user("one"), sealed, user("two")], model=model, keep_last_messages=1)
    (request,) = model.asked
    assert len(request.messages) == 2
    for word in ("one", "thought", "said"):
        assert word in request.prompt
    for word in ("rules", "two", "c2VjcmV0", "c2VhbGVk", "ephemeral", "providerOptions"):
        assert word not in request.prompt


@pytest.mark.rule("C.X.2")
async def test_a_range_that_is_too_large_goes_in_pieces_with_calls_whole() -> None:
    long = "word " * 300
    messages: list[Message] = [user("start"), *(m for n in range(6) for m in (call(f"c{n}"), res(f"c{n}", long)))]
    messages += [assistant("so"), user("go on")]
    asked: list[SummaryRequest] = []

    def model(request: SummaryRequest) -> Summary:
        asked.append(request)
        return Summary((SummaryPart("text", f"part {len(asked)}"),), usage=Usage(10, 1))

    result = await compacted(messages, model=model, keep_last_messages=1, summary_input_tokens=1_000)
    assert result.requests == len(asked) == 4
    assert result.usage == Usage(40, 4)
    assert result.summary == "part 4"
    pieces = [m for request in asked[:-1] for m in request.messages]
    assert len(pieces) == result.replaced_range.end
    for request in asked:
        assert request.max_output_tokens == 2048
        roles = [m.role for m in request.messages]
        assert roles.count("assistant") >= roles.count("tool")
        assert contextbus.estimate_tokens(request.messages) <= 1_000
    refusals = Scripted("one", "", "three")
    assert (await refused(messages, model=refusals, keep_last_messages=1, summary_input_tokens=1_000)).requests == 2


@pytest.mark.rule("C.X.3")
async def test_media_may_be_named_instead_of_protecting() -> None:
    image: Message = {
        "role": "user",
        "content": [{"type": "text", "text": "see"}, {"type": "image", "image": "aGVsbG8=", "mediaType": "image/png"}],
    }
    messages = [image, assistant("a cat"), user("and now?"), assistant("sleeping")]
    model = Scripted()
    result = await compacted(messages, model, keep_last_messages=1, media="placeholder", count_tokens=len)
    assert result.replaced_range.end == 3
    assert "[image: image/png, context://vfs/2cf24dba" in model.asked[0].prompt
    assert "aGVsbG8=" not in model.asked[0].prompt
    last = [user("hi"), assistant(), image, assistant("a cat")]
    assert await range_of(last, 1, media="placeholder", count_tokens=len) == (0, 2)


@pytest.mark.rule("C.X.4", "C.G.8")
async def test_a_share_that_must_be_gained_is_checked_on_demand_only() -> None:
    messages = [user("one"), assistant("two"), user("three")]
    grown = "A summary that is longer than all that it stands for, by far." * 3
    result = await compacted(messages, model=Scripted(grown), keep_last_messages=1)
    assert result.tokens.after > result.tokens.before
    refusal = await refused(messages, model=Scripted(grown), keep_last_messages=1, min_shrink=0.1)
    assert (refusal.reason, refusal.required_tokens) == ("summary-too-large", None)
    counter = Counted()
    await compacted(b1(), keep_last_messages=2, min_shrink=0.5, count_tokens=counter)
    assert [len(given) for given in counter.given] == [4, 3, 2, 3]


@pytest.mark.rule("C.X.5")
async def test_a_range_may_go_without_a_summary() -> None:
    usage: list[object] = []
    for failure in (Scripted(""), Scripted(RuntimeError("down")), Scripted(Summary((), "length", Usage(5, 1)))):
        result = await compacted(b2(), model=failure, keep_last_messages=2, target_tokens=100, on_failure="drop")
        assert (result.dropped, result.summary) == (True, "")
        assert result.messages == tuple(b2()[i] for i in (0, 3, 4))
        assert result.tokens.after <= 100
        assert len(failure.asked) == result.requests == 1
        usage.append(result.usage)
    assert usage == [None, None, Usage(5, 1)]
    unasked = Scripted()
    small = await compacted(b1(), model=unasked, keep_last_messages=2, target_tokens=20, on_failure="drop")
    assert (small.dropped, small.messages, unasked.asked) == (True, tuple(b1()[2:]), [])
    refusal = await refused(b1(), keep_last_messages=2, target_tokens=10, on_failure="drop")
    assert refusal.reason == "protected-history"
    assert refusal.required_tokens == contextbus.estimate_tokens(b1()[2:])
    assert (await refused([user()], on_failure="drop")).reason == "no-safe-boundary"


@pytest.mark.rule("C.X.5", "C.F.8")
async def test_where_the_rest_does_not_fit_either_the_failure_is_told() -> None:
    down = RuntimeError("down")
    counter = Counted(lambda given: 10 if any("Previous" in str(m) for m in given) else 100)
    with pytest.raises(RuntimeError) as caught:
        await compact(
            b1(),
            model=Scripted(down),
            target_tokens=50,
            keep_last_messages=2,
            on_failure="drop",
            count_tokens=counter,
        )
    assert caught.value is down
