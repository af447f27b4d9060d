"""Exact identifiers: which texts hold which, and how many of them survive a summary."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.compaction.histories import called, returned, says

from contextbus.core.compaction.survival import count_survivors, find_identifiers
from contextbus_protocol.chat import AnyPart, ApprovalResponse, ChatMessage, Document, Image, Reasoning, Text, user


def message(*parts: AnyPart) -> ChatMessage:
    made = says("assistant", *parts).message
    assert made is not None
    return made


@pytest.mark.rule("C.X.7")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("open /usr/local/bin, then src/app.py: it fails.", ("/usr/local/bin", "src/app.py")),
        ("~/notes and ./run.sh and ../x and a/b/c", ("~/notes", "./run.sh", "../x", "a/b/c")),
        (r"see C:\Users\ada\x.txt.", (r"C:\Users\ada\x.txt",)),
        ("and/or, 24/7, w/o, I/O, - / -", ()),
        ("(https://a.example/x?id=12345#top), http://b", ("https://a.example/x?id=12345#top", "http://b")),
        ("[link](https://a.example/x).", ("https://a.example/x",)),
        ("numbers 999, 1000, 12,345.67 and 1 234 5", ("1000", "12,345.67")),
        ("order HAT1705 of 2024-05-15", ("1705", "2024")),
        ('a "Blue Heron" and `make_it` and \u201cBig Deal\u201d', ("Blue Heron", "make_it", "Big Deal")),
        ("it's Bob's, 'Red Kite' isn't", ("Red Kite",)),
        ('she said "this is much too long to be a name"', ()),
        ('{"user_id": "mia_li", "next" : 5}', ("mia_li", "next")),
        ('"\\"Oslo\\""', ("Oslo",)),
        ("twice 1234, then 1234 and '1234'", ("1234",)),
        ("b 2222 a 1111", ("2222", "1111")),
        ("data:image/png;base64,AAAA1234/x/y/z= 5678", ("5678",)),
        ("", ()),
    ],
)
def test_identifiers_are_found_in_order_and_once(text: str, found: tuple[str, ...]) -> None:
    assert find_identifiers([text]) == found


@pytest.mark.rule("C.X.7")
def test_several_texts_are_read_in_order() -> None:
    assert find_identifiers(["2222", "1111 2222", "/a"]) == ("2222", "1111", "/a")


@pytest.mark.rule("C.X.7")
def test_what_is_longer_than_any_identifier_is_none() -> None:
    assert find_identifiers(["/" + "a" * 511, "1" * 513, "https://a/" + "b" * 600]) == ("/" + "a" * 511,)


@pytest.mark.rule("C.X.7")
def test_seen_are_those_of_the_range_and_kept_those_in_summary_or_memory() -> None:
    replaced = [
        user('pay 1250 for "Blue Heron" from /srv/app.py'),
        message(Text(text="order 7788 is at https://a.b/c")),
    ]
    assert count_survivors(replaced, "", (), ()) == (5, 0)
    assert count_survivors(replaced, "1250 was paid for Blue Heron.", (), ()) == (5, 2)
    assert count_survivors(replaced, "1250", ("look into /srv/app.py:12", "order 7788, done"), ()) == (5, 3)
    assert count_survivors(replaced, "see https://a.b/c.", ("1250",), ()) == (5, 2)
    assert count_survivors([], "1250", ("7788",), ("c",)) == (0, 0)


@pytest.mark.rule("C.X.7")
def test_a_part_of_another_identifier_is_no_occurrence() -> None:
    assert count_survivors([user("order 1234")], "12345", ("91234",), ()) == (1, 0)
    assert count_survivors([user("in /srv/app")], "/srv/app2", (), ()) == (1, 0)
    assert count_survivors([user('"Blue Heron"')], "Blue. And a Herons.", (), ()) == (1, 0)


@pytest.mark.rule("C.X.7")
def test_calls_that_working_memory_cites_count_if_the_range_has_them() -> None:
    replaced = [message(called("call_x")), message(returned("call_y"))]
    assert count_survivors(replaced, "", (), ("call_x", "call_y", "call_z")) == (2, 0)
    assert count_survivors(replaced, "", ("tried it (call_x)",), ("call_x", "call_x")) == (1, 1)


@pytest.mark.rule("C.X.7")
def test_every_text_of_a_message_is_read_and_json_without_its_escapes() -> None:
    parts = (
        Reasoning(text="think 1001"),
        called("a", arguments=json.dumps({"q": "line\n/etc/hosts \u00e9 2002", "w": 'as you say "Oslo" is the place'})),
        returned("a", json.dumps(["x\n/var/log"])),
        Document(title="t 3003", text="4004", url="https://d.e/f"),
        Image(url="https://g.h/i.png"),
        ApprovalResponse(id="p", approved=False, reason="5005"),
    )
    replaced = [message(part) for part in parts]
    wanted = "1001 /etc/hosts 2002 Oslo /var/log 3003 4004 https://d.e/f https://g.h/i.png 5005"
    seen, kept = count_survivors(replaced, wanted, (), ())
    assert kept == seen == len(wanted.split())


HOSTILE = (
    *(word * (1_000_000 // len(word)) for word in ("a", "/", '"', "a/", "a:", "1,", "1.", "\\", ".", " ", "1", "a@")),
    *(
        word * (1_000_000 // len(word))
        for word in ('"a', "'a", "`a ", "http://", "ab://c ", "a:\\", "\u201ca", "a/b.c ")
    ),
    *(word * (1_000_000 // len(word)) for word in ("data:", ";base64,", "data:a/b;base64,", "data:a/b;base64,AAAA")),
    "a" * 500_000 + "://" + "b" * 500_000,
    '"' + "a b " * 250_000,
)


@pytest.mark.rule("C.X.7")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:8]))
def test_no_text_makes_the_search_slow(text: str) -> None:
    assert len(find_identifiers([text])) <= 1
    seen, kept = count_survivors([user(text[:100_000])], text[:100_000], (), ())
    assert kept == seen <= 1


@given(st.text(st.sampled_from("ab1/\\.:,\"'` \n\u201c\u201d-"), max_size=80))
@pytest.mark.rule("C.X.7")
def test_what_a_text_holds_survives_in_the_text_itself(text: str) -> None:
    found = find_identifiers([text])
    assert len(set(found)) == len(found)
    assert all(one in text for one in found)
    assert count_survivors([message(Document(text=text))], text, (), ()) == (len(found), len(found))
