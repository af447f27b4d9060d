"""Faults that others reported of compaction, as inputs of ``compact``; each says where it was reported.

Pauses after a refusal need a memory, which a single call has none of: here a refused summary is refused, once.
"""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.compacting import (
    Message,
    Scripted,
    assistant,
    assistant_of,
    b1,
    call_part,
    compact,
    compacted,
    refused,
    res,
    system,
    user,
)

import contextbus.client as contextbus
from contextbus.summarisers.built_in import extractive_summariser
from contextbus.summarisers.interface import Summary, SummaryRequest
from contextbus_protocol.compaction import SummaryPart


@pytest.mark.rule("C.G.2", "C.E.7", "C.A.9")
@given(st.lists(st.sampled_from(["u", "a"]), max_size=4))
async def test_what_is_not_reduced_comes_back_as_it_was(kinds: list[str]) -> None:
    """BerriAI/litellm#4931, #6505, #8261: messages far under the limit were trimmed."""
    messages = [user() if kind == "u" else assistant() for kind in kinds]
    result = await refused(messages, target_tokens=100_000)
    assert result.reason == "no-safe-boundary"


@pytest.mark.rule("C.G.8", "C.X.4", "C.C.7")
async def test_a_summary_that_is_larger_than_what_it_replaces_is_refused_once() -> None:
    """google-gemini/gemini-cli#4557: "compressed" to more tokens than there were."""
    before = contextbus.estimate_tokens(b1())
    model = Scripted("z" * (800 + 4))
    result = await refused(b1(), model, keep_last_messages=2, target_tokens=before)
    assert (result.reason, result.tokens.after, len(model.asked)) == ("summary-too-large", before, 1)
    result = await refused(b1(), model, keep_last_messages=2, target_tokens=10 * before, min_shrink=0.0001)
    assert result.reason == "summary-too-large"


@pytest.mark.rule("C.G.5", "C.G.6", "C.F.1")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [("", "empty-summary"), (Summary((SummaryPart("text", "half a"),), "length"), "incomplete-summary")],
)
async def test_an_empty_or_cut_summary_has_a_reason_and_is_not_tried_again(answer: Any, reason: str) -> None:
    """justrach/codegraff#379: an empty summary was adopted."""
    model = Scripted(answer)
    result = await refused([user(f"message {n}") for n in range(50)], model)
    assert (result.reason, len(model.asked)) == (reason, 1)


@pytest.mark.rule("C.G.14", "C.E.9")
@pytest.mark.parametrize("told", [False, True])
async def test_a_fact_survives_many_rounds(told: bool) -> None:
    """BerriAI/litellm#28868: the second compaction lost the first summary."""
    fact = "The vault code is 7Q-193."

    def model(request: SummaryRequest) -> str:
        return fact if fact in request.prompt else "nothing"

    messages: list[Any] = [user(fact), assistant("noted")]
    own: tuple[str, ...] = ()
    for number in range(6):
        messages = [*messages, user(f"question {number}"), assistant(f"answer {number}")]
        result = await compacted(messages, model, keep_last_messages=1, own_blocks=own if told else ())
        assert result.summary == fact
        messages, own = list(result.messages), result.own_blocks
    assert sum("Previous conversation summary" in str(m) for m in messages) == 1


@pytest.mark.rule("C.X.9")
async def test_a_fact_survives_many_rounds_with_the_summariser_that_needs_no_model() -> None:
    """BerriAI/litellm#28868: the second compaction lost the first summary."""
    messages: list[Any] = [user("Remember: the vault code is 7Q-193."), assistant("noted")]
    own: tuple[str, ...] = ()
    for number in range(4):
        messages = [*messages, user(f"What about shelf {number}?"), assistant(f"Shelf {number} is empty.")]
        result = await compacted(messages, extractive_summariser(), keep_last_messages=1, own_blocks=own)
        messages, own = list(result.messages), result.own_blocks
        assert "7Q-193" in result.summary


@pytest.mark.rule("C.E.2")
async def test_the_label_promises_nothing_and_speaks_for_nobody() -> None:
    """moltis-org/moltis#653 promised messages that were not kept; MoonshotAI/kimi-code#3513 spoke as the user."""
    result = await compacted([system("Obey the rules."), *b1()], Scripted("They met."), keep_last_messages=1)
    summary = result.messages[1]
    assert summary == {"role": "user", "content": "Previous conversation summary:\nThey met."}
    nothing_kept = await compacted([user("a"), assistant("b")], Scripted("They met."), keep_last_messages=1)
    assert nothing_kept.messages[0] == summary


@pytest.mark.rule("C.E.4", "C.F.4")
async def test_the_rules_never_reach_the_summariser_and_the_request_follows_its_summary() -> None:
    """MoonshotAI/kimi-code#3513: a summary was the last thing that the user seemed to say."""
    model = Scripted()
    messages = [system("Obey the rules."), user("find it"), assistant("a"), assistant("b")]
    result = await compacted(messages, model, keep_last_messages=1)
    assert "Obey" not in model.asked[0].prompt + model.asked[0].instructions
    assert result.messages[2] is messages[1]


@pytest.mark.rule("C.D.2", "C.E.1")
@given(st.integers(0, 4), st.integers(2, 50))
async def test_the_leading_rules_are_never_lost(rules: int, turns: int) -> None:
    """browser-use/agent-sdk#3, anomalyco/opencode#16960: rules were lost by a compaction."""
    leading = [system(f"rule {n}") for n in range(rules)]
    messages = [*leading, *(m for n in range(turns) for m in (user(f"q{n}"), assistant(f"a{n}")))]
    result = await compacted(messages, keep_last_messages=1)
    assert all(a is b for a, b in zip(result.messages[:rules], leading, strict=True))
    assert result.replaced_range.start == rules


def picture(text: str, data: str) -> Message:
    parts = [{"type": "text", "text": text}, {"type": "image", "image": data, "mediaType": "image/png"}]
    return {"role": "user", "content": parts}


@pytest.mark.rule("C.D.4", "C.X.3", "C.E.4")
@pytest.mark.parametrize("media", ["protect", "placeholder"])
async def test_the_picture_that_the_user_just_sent_stays(media: str) -> None:
    """justrach/codegraff#260: a picture was summarised away before the model saw it."""
    sent = picture("What is this?", base64.b64encode(b"\x89PNG" + bytes(30_000)).decode())
    first = await refused([sent, assistant("A cat.")], media=media, count_tokens=len, keep_last_messages=1)
    assert first.reason == "no-safe-boundary"
    later = [user("hi"), assistant("hello"), sent, assistant("A cat."), assistant("Asleep.")]
    result = await compacted(later, keep_last_messages=1, media=media, count_tokens=len)
    assert result.replaced_range.end == 2
    assert result.messages[1] is sent


@pytest.mark.rule("C.X.3", "C.F.4")
async def test_base64_is_named_and_never_sent_to_the_summariser() -> None:
    """myriade-ai/agentlys#347, QwenLM/qwen-code#4101: base64 made the request for a summary too large."""
    data = base64.b64encode(bytes(range(256)) * 6_000).decode()
    in_text = f'{{"screenshot": "data:image/png;base64,{data}"}}'
    messages = [
        picture("Look at this.", data),
        assistant_of(call_part("a")),
        res("a", in_text),
        assistant("Seen."),
        user("And now?"),
        assistant("Nothing."),
    ]
    model = Scripted()
    result = await compacted(messages, model, keep_last_messages=1, media="placeholder", count_tokens=len)
    assert result.replaced_range.end == 5
    assert len(model.asked[0].prompt) < 2_000
    assert model.asked[0].prompt.count("[image: image/png, context://vfs/") == 2
    with pytest.raises(TypeError, match="count_tokens"):
        await compact(messages, model=model, target_tokens=5000, media="placeholder")
