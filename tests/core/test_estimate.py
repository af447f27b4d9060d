"""The estimator: exact sums, fixed costs, media, tokenizers and their records."""

from __future__ import annotations

import base64
import json
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextbus.core.estimate import (
    ANTHROPIC_TOOL_FRAMING_TOKENS,
    Estimator,
    estimate_overhead,
    make_estimator,
    recorded_estimator,
)
from contextbus.core.media import media_tokens, strip_media_fields
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    ChatMessage,
    Document,
    Image,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    assistant,
    user,
)
from contextbus_protocol.digests import digest_text
from contextbus_protocol.errors import (
    InvalidRequestError,
    InvalidTypeError,
    NotFoundError,
    RangeError,
    UnsupportedVersionError,
)
from contextbus_protocol.package import CountFact
from contextbus_protocol.values import EstimatorSpec

CHARACTERS = EstimatorSpec(name="characters")
WORDS = EstimatorSpec(kind="tokenizer", name="words")
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=[]))
PAYLOAD = base64.b64encode(bytes(range(256)) * 400).decode()


def flat() -> Estimator:
    return make_estimator(CHARACTERS)


def weigh(*parts: AnyPart) -> int:
    """Eighteenths of the parts of one message, the message's own 72 not counted."""
    return flat().message(ChatMessage(role="user", content=parts)) - 72


def count_words(text: str) -> int:
    return len(text.split())


@pytest.mark.rule("D.M.2", "D.M.4", "D.V1.1")
def test_flat_heuristic_counts_five_eighteenths_a_character_and_72_a_message() -> None:
    assert flat().text("How do I deploy?") == 16 * 5
    assert flat().message(user("How do I deploy?")) == 72 + 16 * 5
    assert flat().estimate([user("How do I deploy?")]) == 9
    assert flat().estimate([]) == 0
    # One rounding for all messages together: 3 x (72 + 5) eighteenths are 12.8 tokens, and not three times 5.
    assert flat().estimate([user("a")] * 3) == 13


@pytest.mark.rule("D.M.2", "D.D.11", "D.U.4")
def test_default_is_the_heuristic_of_classes_and_unknown_names_are_told_what_there_is() -> None:
    assert make_estimator().spec == EstimatorSpec(kind="heuristic", name="classes", version=1)
    with pytest.raises(InvalidRequestError, match="characters, classes"):
        make_estimator(EstimatorSpec(name="words"))
    with pytest.raises(InvalidRequestError, match="at hand: none"):
        make_estimator(WORDS)
    with pytest.raises(InvalidRequestError, match="at hand: another, other"):
        make_estimator(WORDS, {"other": count_words, "another": count_words})
    with pytest.raises(UnsupportedVersionError):
        make_estimator(EstimatorSpec(version=2))


@pytest.mark.rule("D.M.7")
@pytest.mark.parametrize("name", ["characters", "classes"])
def test_lone_surrogate_counts_as_the_replacement_character(name: str) -> None:
    estimator = make_estimator(EstimatorSpec(name=name))
    assert estimator.text("a\ud800b") == estimator.text("a\ufffdb") > estimator.text("ab")
    assert estimator.text("\ud83d\ude00") == estimator.text("😀")
    assert flat().text("😀é") == 10


@pytest.mark.rule("D.M.13", "B44")
@pytest.mark.parametrize("name", ["characters", "classes"])
@given(st.lists(st.text(max_size=40), max_size=8))
def test_weight_of_a_concatenation_is_the_sum_of_the_weights(name: str, texts: list[str]) -> None:
    estimator = make_estimator(EstimatorSpec(name=name))
    assert estimator.text("".join(texts)) == sum(map(estimator.text, texts))
    # So one text rounded up once is never more than its parts, each rounded up by itself.
    assert estimator.count("".join(texts)) <= sum(map(estimator.count, texts))


@pytest.mark.rule("D.M.4", "D.M.7")
@given(ANY_TEXT)
def test_any_text_has_a_weight(text: str) -> None:
    weight = make_estimator().text(text)
    assert (weight > 0) == bool(text)


@pytest.mark.rule("D.M.5")
def test_factor_scales_once_at_the_end_and_exactly() -> None:
    double = make_estimator(EstimatorSpec(name="characters", factor=20_000))
    assert double.text("abc") == flat().text("abc")
    assert [double.tokens(n) for n in (0, 1, 9, 10, 18)] == [0, 1, 1, 2, 2]
    third = make_estimator(EstimatorSpec(name="characters", factor=13_334))
    assert third.tokens(18 * 10_000) == 13_334
    assert third.tokens(18 * 10_000 + 1) == 13_335
    for factor in (4_999, 20_001):
        with pytest.raises(RangeError):
            make_estimator(EstimatorSpec(factor=factor))


@pytest.mark.rule("D.M.4")
def test_every_kind_of_part_has_its_cost() -> None:
    assert weigh(Text(text="abc")) == 15
    assert weigh(Reasoning(text="abc", signature="x" * 500)) == 15
    assert weigh(Image(data=PAYLOAD)) == weigh(Image(url="https://example.org/a.png")) == 1600 * 18
    assert weigh(Document(data=PAYLOAD)) == 1000 * 18
    assert weigh(Document(text="abc", title="de")) == 25
    assert weigh(ToolCall(id="1", name="f", arguments='{ "a" : 1 }')) == 5 * len('{"name":"f","input":{"a":1}}') + 180
    assert weigh(ToolCall(id="1", name="f", arguments="{oops")) == 5 * len('{"name":"f","input":{oops}') + 180
    assert weigh(ToolResult(id="1")) == 180
    assert weigh(ToolResult(id="1", content=(Text(text="abc"), Image(data=PAYLOAD)))) == 180 + 15 + 1600 * 18
    assert weigh(ApprovalRequest(id="1", call_id="2")) == 5 * len('{"type":"approval-request","id":"1","callId":"2"}')
    assert weigh(ApprovalResponse(id="1", approved=True)) > 0


@pytest.mark.rule("D.M.4", "B41")
def test_unknown_part_costs_the_characters_of_its_compact_json() -> None:
    compact = '{"type":"toolResult","content":["' + "x" * 10_000 + '"]}'
    loose = json.dumps(json.loads(compact), indent=4)
    assert weigh(Unknown(data=compact)) == weigh(Unknown(data=loose)) == 5 * len(compact)
    assert weigh(Unknown(data="not json")) == 5 * len("not json")


DATA_URI = f"data:image/png;base64,{PAYLOAD}"
SHAPES = [
    pytest.param({"type": "image_url", "image_url": {"url": DATA_URI}}, id="image_url"),
    pytest.param({"type": "input_image", "image_url": DATA_URI, "detail": "auto"}, id="input_image"),
    pytest.param(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PAYLOAD}}, id="source"
    ),
    pytest.param({"inlineData": {"mimeType": "image/png", "data": PAYLOAD}}, id="inlineData"),
    pytest.param({"type": "image", "data": PAYLOAD, "mimeType": "image/png"}, id="data"),
    pytest.param({"image": {"bytes": PAYLOAD, "contentType": "image/png"}}, id="bytes"),
    pytest.param({"base64": PAYLOAD, "content_type": "image/png"}, id="base64"),
    pytest.param({"blob": PAYLOAD, "mime_type": "image/png"}, id="blob"),
    pytest.param({"blob": PAYLOAD, "mediaType": "image/png"}, id="mediaType"),
]


@pytest.mark.rule("D.M.4", "B40")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["characters", "classes"])
@pytest.mark.parametrize("place", ["unknown", "result-text", "result-unknown", "call"])
def test_base64_costs_an_image_in_every_shape(shape: object, name: str, place: str) -> None:
    data = json.dumps(shape)
    parts: dict[str, AnyPart] = {
        "unknown": Unknown(data=data),
        "result-text": ToolResult(id="1", content=(Text(text=data),)),
        "result-unknown": ToolResult(id="1", content=(Unknown(data=data),)),
        "call": ToolCall(id="1", name="show", arguments=data),
    }
    estimator = make_estimator(EstimatorSpec(name=name))
    message = ChatMessage(role="tool", content=(parts[place],))
    assert 1600 <= estimator.estimate([message]) <= 1700


@pytest.mark.rule("D.M.4", "B40")
def test_base64_that_is_no_image_costs_a_document() -> None:
    audio = json.dumps({"type": "input_audio", "input_audio": {"data": PAYLOAD, "format": "wav"}})
    blob = json.dumps({"resource": {"uri": "file:///a.pdf", "mimeType": "application/pdf", "blob": PAYLOAD}})
    picture = json.dumps({"data": PAYLOAD, "format": "png"})
    assert 1000 <= flat().tokens(weigh(Unknown(data=audio))) <= 1030
    assert 1000 <= flat().tokens(weigh(Unknown(data=blob))) <= 1030
    assert 1600 <= flat().tokens(weigh(Unknown(data=picture))) <= 1630
    two = f"first {DATA_URI} then data:application/pdf;name=a.pdf;base64,{PAYLOAD}."
    assert flat().text(two) == 5 * len("first  then .") + 2600 * 18


@pytest.mark.rule("D.M.4", "B40")
def test_what_only_looks_like_media_is_counted_as_text() -> None:
    for text in (
        '{"data":"a,b\\nc,d","format":"csv"}',
        '{"data":"hello","format":"text"}',
        '{"data":"plain words, not base64","mimeType":"text/plain"}',
        json.dumps({"data": PAYLOAD}, separators=(",", ":")),
        "data:image/png;base64,... stands for the picture",
        "metadata:;base64,abcd",
    ):
        assert weigh(Text(text=text)) == weigh(Unknown(data=text)) == 5 * len(text)


@pytest.mark.rule("B40")
@pytest.mark.timeout(5)
def test_search_for_media_takes_linear_time() -> None:
    for text in ("data:;" * 50_000 + ";base64,", "data:image/" * 30_000 + ";base64,", '{"data":' * 20_000):
        assert weigh(Unknown(data=text)) > 0
        assert flat().text(text) > 0


@pytest.mark.rule("B42")
@pytest.mark.parametrize(
    "text", ["你好世界" * 25, "안녕하세요" * 20, "こんにちは" * 10 + "カタカナ" * 10, "文字化け" * 9]
)
def test_every_han_hangul_and_kana_character_is_at_least_a_token(text: str) -> None:
    assert make_estimator().count(text) >= len(text)


@pytest.mark.rule("B42")
def test_every_astral_character_is_at_least_a_token_and_ascii_keeps_its_weight() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    assert make_estimator().count(family * 10) >= 30
    assert make_estimator().count("\U00020bb7\U0001d573" * 10) >= 20
    thai = "ลูกค้าสามารถคืนสินค้าได้"
    assert make_estimator().count(thai) >= len(thai) * 0.8
    text = 'Deploy {"id": 42} Now.\n'
    assert make_estimator().text(text + thai) - make_estimator().text(thai) == make_estimator().text(text)


@pytest.mark.rule("D.M.3", "D.M.14")
def test_tokenizer_counts_become_facts_in_order_of_their_digests() -> None:
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text)
        return count_words(text)

    estimator = make_estimator(WORDS, {"words": count})
    texts = ["one two three", "four", "one two three", ""]
    assert [estimator.count(text) for text in texts] == [3, 1, 3, 0]
    assert asked == ["one two three", "four"]
    facts = {CountFact(digest_text("one two three"), 54), CountFact(digest_text("four"), 18)}
    assert set(estimator.counts) == facts
    assert [fact.digest for fact in estimator.counts] == sorted(fact.digest for fact in facts)
    assert flat().counts == ()


@pytest.mark.rule("D.M.14")
def test_replay_reads_the_counts_and_needs_no_tokenizer() -> None:
    messages = [
        user("one two three"),
        assistant("four"),
        ChatMessage(role="tool", content=(ToolResult(id="1", content=(Text(text=DATA_URI + " five"),)),)),
        ChatMessage(role="user", content=(Unknown(data=json.dumps({"mimeType": "image/png", "data": PAYLOAD})),)),
    ]
    first = make_estimator(WORDS, {"words": count_words})
    tokens = first.estimate(messages)
    second = recorded_estimator(first.spec, first.counts)
    assert second.estimate(messages) == tokens
    assert second.counts == first.counts
    with pytest.raises(NotFoundError, match="sha256:"):
        second.count("never counted")
    assert recorded_estimator(CHARACTERS, ()).estimate([user("How do I deploy?")]) == 9


@pytest.mark.rule("D.M.6")
@pytest.mark.parametrize("answer", [ValueError("no"), -1, float("nan"), float("inf"), "3", None, True, 2**60])
def test_tokenizer_that_fails_gives_way_to_the_heuristic_and_the_count_is_recorded(answer: object) -> None:
    def tokenizer(_: str) -> int:
        if isinstance(answer, Exception):
            raise answer
        return cast("int", answer)

    estimator = make_estimator(WORDS, {"words": tokenizer})
    assert estimator.text("one two three") == make_estimator().text("one two three")
    assert estimator.counts == (CountFact(digest_text("one two three"), make_estimator().text("one two three")),)
    doubled = make_estimator(EstimatorSpec(kind="tokenizer", name="words", factor=20_000), {"words": tokenizer})
    weight = make_estimator().text("one two three")
    assert doubled.count("one two three") == -(-2 * weight // 18)


@pytest.mark.rule("D.M.6")
def test_tokenizer_may_return_a_fraction_and_is_never_shown_base64_or_surrogates() -> None:
    shown: list[str] = []

    def count(text: str) -> float:
        shown.append(text)
        return 1.2

    estimator = make_estimator(WORDS, {"words": count})
    assert estimator.text("a\ud800b") == 36
    assert estimator.text(f"see {DATA_URI}") == 36 + 1600 * 18
    assert shown == ["a\ufffdb", "see "]


TOOLS: list[dict[str, object]] = [
    {"name": f"tool_{n}", "input_schema": {"type": "object", "properties": {}}} for n in range(40)
]
SCHEMA: dict[str, object] = {"type": "object", "properties": {"answer": {"type": "string"}}}


@pytest.mark.rule("D.M.8", "D.M.15", "B44")
def test_overhead_is_the_sum_of_tools_schema_and_framing() -> None:
    estimator = flat()
    tools = estimator.count(msgspec.json.encode(TOOLS).decode())
    schema = estimator.count(msgspec.json.encode(SCHEMA).decode())
    assert ANTHROPIC_TOOL_FRAMING_TOKENS == 346
    assert estimate_overhead(TOOLS, SCHEMA, "openai", estimator=estimator) == tools + schema
    assert estimate_overhead(TOOLS, SCHEMA, "anthropic", estimator=estimator) == tools + schema + 346
    assert estimate_overhead(TOOLS, None, "anthropic", 0, estimator) == tools
    assert estimate_overhead(TOOLS, None, "anthropic", 12, estimator) == tools + 12
    assert estimate_overhead([], SCHEMA, "anthropic", estimator=estimator) == schema
    assert estimate_overhead([], None, "anthropic") == 0
    assert estimate_overhead(TOOLS, None, "openai") == make_estimator().count(msgspec.json.encode(TOOLS).decode())


@pytest.mark.rule("D.M.15")
def test_overhead_refuses_what_has_no_json_form() -> None:
    with pytest.raises(InvalidTypeError):
        estimate_overhead([object()], None, "openai")
    for framing in (-1, True, 2**53):
        with pytest.raises(RangeError):
            estimate_overhead([], None, "openai", framing)


@pytest.mark.rule("D.M.1", "D.M.16")
def test_calibrated_only_labels_and_one_estimator_counts_everything_alike() -> None:
    labelled = make_estimator(EstimatorSpec(name="characters", calibrated=True))
    assert labelled.estimate([user("abc")]) == flat().estimate([user("abc")])
    text = "the same text"
    assert (
        flat().message(user(text)) - 72
        == flat().text(text)
        == weigh(Document(text=text))
        == weigh(Reasoning(text=text))
    )


@pytest.mark.rule("D.M.4")
def test_a_document_costs_its_text_and_its_title_where_it_has_one() -> None:
    assert weigh(Document(text="page")) == 4 * 5
    assert weigh(Document(text="page", title="terms")) == 9 * 5
    assert weigh(Document(url="u", title="terms")) - weigh(Document(url="u")) == 5 * 5


@pytest.mark.rule("D.M.4")
@pytest.mark.parametrize("form", ["png", "jpg", "jpeg", "gif", "webp", "bmp", "tiff", "heic", "avif", "PNG", "wav"])
def test_base64_beside_a_format_costs_what_its_media_costs(form: str) -> None:
    tokens = 1000 if form == "wav" else 1600
    assert media_tokens(None) == media_tokens("audio/wav") == 1000
    assert media_tokens("IMAGE/png") == 1600
    part = json.dumps({"data": "A" * 64, "format": form})
    assert strip_media_fields(part) == (json.dumps({"data": "", "format": form}, separators=(",", ":")), tokens)
    short = json.dumps({"data": "A" * 60, "format": form})
    assert strip_media_fields(short) == (short, 0)
