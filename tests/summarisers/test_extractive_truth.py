"""The extractive summary says nothing that was not said: no negation is lost, no other thing's fact, no stale value."""

from __future__ import annotations

import pytest

from contextbus.summarisers.extractive import extract_summary
from contextbus_protocol.chat import ChatMessage, Text, ToolCall, ToolResult, assistant, user

ROOM = 1_000


def summarise(*said: str, room: int = ROOM) -> str:
    return extract_summary([user(text) for text in said], room)


@pytest.mark.rule("C.X.9")
@pytest.mark.parametrize(
    "said",
    [
        "No extra baggage needed for order 77.",
        "No deploys on Friday 13:00.",
        "No refund was paid for invoice 4471.",
        "No more than 3 retries.",
        "No one may restart host-7.",
        "Non urgent tickets go to queue Q-9.",
        "Right turns are forbidden at gate 12.",
        "Good customers get 10 % off.",
        "Nein sagen ist bei Vertrag V-12 erlaubt.",
        "Thanks to Wilma Pellworm invoice 4471 was found.",
        "No-one may open crate K-7.",
    ],
)
def test_a_word_that_belongs_to_the_statement_is_not_cut_as_an_answer(said: str) -> None:
    assert said in summarise(said)


@pytest.mark.rule("C.X.9")
@pytest.mark.parametrize(
    "head", ["No, ", "Yes. ", "Okay! ", "Nein, ", "Oui, ", "Yes - ", "No — ", "Hi ", "Thanks a lot. "]
)
def test_an_answer_word_with_a_sign_behind_it_is_cut(head: str) -> None:
    assert summarise(f"{head}the crate is K-77.").split("\n")[1] == "- the crate is K-77."


@pytest.mark.rule("C.X.9")
@pytest.mark.parametrize(
    "said",
    [
        [f"Order {7000 + n} ships from depot D-{n % 3 + 1}." for n in range(10)],
        [f"Ship order {7000 + n} from depot D-{n % 3 + 1}." for n in range(10)],
        [f"Order {7000 + n} now ships from depot D-{n % 3 + 1}." for n in range(10)],
        [f"host-{n} has {n + 4} GB of memory." for n in range(10)],
        [f"Batch {n} must be stored in rack R-{n + 30}." for n in range(3, 9)],
        [f"Order {7000 + n} moved from depot D-1 to depot D-{n + 2}." for n in range(5)],
        ["The backup of host-7 runs at 10:15.", "The backup of host-9 runs at 11:45 now."],
    ],
)
def test_facts_about_different_things_stay_side_by_side(said: list[str]) -> None:
    text = summarise(*said)
    assert [line for line in said if line not in text and "from depot D-1 to" not in line] == []
    assert all(f"Order {7000 + n}" in text for n in range(len(said)) if said[0].startswith("Order"))


@pytest.mark.rule("C.X.9")
@pytest.mark.parametrize(
    ("earlier", "later", "kept", "gone"),
    [
        (
            "The ticket is OPS-7311, the database is at db-eu-4.internal:6432, and the cut-over is at 02:30 UTC.",
            "The cut-over is at 04:15 UTC now.",
            ("The ticket is OPS-7311", "db-eu-4.internal:6432", "04:15 UTC"),
            ("02:30",),
        ),
        (
            "Deploy on host-7 at 10:00 with the key K-9.",
            "The deploy on host-7 is at 11:00 now.",
            ("K-9", "11:00"),
            ("10:00",),
        ),
        (
            "Never use A-17 and B-20 for orders.",
            "Use C-30 for orders instead of A-17.",
            ("B-20", "C-30"),
            ("- B-20\n",),
        ),
        ("Call not before 9:15 and never leave a message.", "Call not before 10:15 now.", ("10:15",), ("9:15",)),
    ],
)
def test_a_change_drops_the_stale_part_and_no_other_fact(
    earlier: str, later: str, kept: tuple[str, ...], gone: tuple[str, ...]
) -> None:
    text = summarise(earlier, later)
    assert [value for value in kept if value not in text] == []
    assert [value for value in gone if value in text] == []


@pytest.mark.rule("C.X.9")
@pytest.mark.parametrize(
    ("earlier", "later", "kept", "gone"),
    [
        ("Budget is 1,200.", "Raise the budget to 1,500.", "1,500", "1,200"),
        ("The budget is 4500 EUR.", "The budget was cut to 3000.", "3000", "4500"),
        ("Server is host-7.", "We use host-9 instead of host-7.", "host-9", "host-7"),
        ("The server is host-7.", "The server must be host-9 now.", "host-9", "host-7"),
    ],
)
def test_only_the_latest_value_is_left(earlier: str, later: str, kept: str, gone: str) -> None:
    text = summarise(earlier, later)
    assert (kept in text, gone in text) == (True, False)


@pytest.mark.rule("C.X.9")
def test_of_two_values_that_both_stay_the_later_stands_later() -> None:
    text = summarise("The parcel for Wilma Pellworm goes to 12 Mill Lane.", "The parcel must go to 7 Harbour Street.")
    assert -1 < text.find("12 Mill Lane") < text.find("7 Harbour Street") or "12 Mill Lane" not in text


@pytest.mark.rule("C.X.9")
def test_a_denial_is_not_cut_out_of_a_statement() -> None:
    text = summarise("The code of the safe is K-71.", "The code of the safe is not K-71 but K-72 now.")
    assert "is not K-71 but K-72" in text


def call(name: str, arguments: str, result: str, *, error: bool = False) -> list[ChatMessage]:
    return [
        ChatMessage(role="assistant", content=(ToolCall(id="c", name=name, arguments=arguments),)),
        ChatMessage(role="tool", content=(ToolResult(id="c", content=(Text(text=result),), error=error),)),
    ]


@pytest.mark.rule("C.X.9")
def test_a_call_is_told_with_what_came_of_it() -> None:
    text = extract_summary(
        [
            user("Look after order 77."),
            *call("order_status", '{"order": 77}', '{"status": "shipped", "total": 41.5, "lines": [{"sku": "B-7"}]}'),
            *call("quote", '{"n": 1}', "x " * 400 + "the fee is $31.20 from 2031-05-04"),
            *call("book", '{"seat": "4A"}', "Booked as K-1234."),
        ],
        400,
    )
    assert "- order_status(order=77) -> status=shipped, total=41.5, sku=B-7\n" in text
    assert "- quote(n=1) -> $31.20, 2031-05-04\n" in text
    assert "- book(seat=4A) -> Booked as K-1234." in text


@pytest.mark.rule("C.X.9")
@pytest.mark.parametrize(
    ("result", "error"),
    [
        ("seat 4A is taken", True),
        ("Error: seat 4A is taken", False),
        ('{"error": "seat 4A is taken"}', False),
        ('{"status": "failed", "seat": "4A"}', False),
        ('{"success": false, "seat": "4A"}', False),
    ],
)
def test_a_failed_call_reads_as_failed(result: str, *, error: bool) -> None:
    text = extract_summary([user("Book seat 4A."), *call("book", '{"seat": "4A"}', result, error=error)], 400)
    assert "- book(seat=4A) -> failed" in text


@pytest.mark.rule("C.X.9")
def test_what_is_told_of_a_result_is_short() -> None:
    result = "{" + ", ".join(f'"key_{n}": "value-{n}"' for n in range(400)) + "}"
    text = extract_summary([user("Go."), *call("dump", "{}", result)], 4_000)
    line = next(each for each in text.split("\n") if each.startswith("- dump()"))
    assert 100 < len(line) <= 180


@pytest.mark.rule("C.X.9")
def test_statements_go_before_calls_without_facts() -> None:
    said = [f"The crate K-{n}00 belongs to rack R-{n}7." for n in range(10, 22)]
    messages = [user(text) for text in said]
    for n in range(33):
        messages += call("order_status", f'{{"order": {7000 + n}}}', "")
    text = extract_summary(messages, 160)
    assert [line for line in said if line not in text] == []


@pytest.mark.rule("C.X.9")
@pytest.mark.parametrize(
    "said",
    [
        "I confirm. Please go ahead with this payment.",
        "Yes, please proceed with that booking. Thank you!",
        "Everything looks correct. Please go ahead with the update.",
        "That's correct, please proceed.",
        "Please go ahead.",
        "Sounds good, thanks.",
    ],
)
def test_an_assent_is_no_constraint_and_no_decision(said: str) -> None:
    assert "Constraints" not in summarise(said, "The crate is K-77.")
    assert "Decisions" not in summarise(said, "The crate is K-77.")
    assert "K-77" in summarise(said, "The crate is K-77.")


@pytest.mark.rule("C.X.9")
def test_a_request_to_confirm_is_open_until_it_is_answered() -> None:
    asked = assistant("Please confirm if you would like to proceed with this booking.")
    told = user("The crate is K-77.")
    assert extract_summary([told, asked], 400).startswith("Values:\n- The crate is K-77.\nOpen:\n- assistant: Please")
    assert extract_summary([told, asked, user("I confirm.")], 400) == "Values:\n- The crate is K-77."


@pytest.mark.rule("C.X.9")
def test_small_talk_alone_is_told_by_its_last_words() -> None:
    text = extract_summary([user("hello there"), assistant("Hi. How nice.")], 100)
    assert text == "Notes:\n- user: hello there\n- assistant: Hi."
    assert extract_summary([user("hello there"), assistant("Hi.")], 5) == "user: hello there"


@pytest.mark.rule("C.X.9")
@pytest.mark.parametrize(
    ("earlier", "later", "kept"),
    [
        ("Never mail K-7 and never mail K-8.", "Mail K-7 now.", "never mail K-8"),
        ("Never mail K-8.", "Mail K-7 now.", "Never mail K-8"),
        ("Anna Meyer owes $20.", "Clara Voss now owes $40.", "Anna Meyer owes $20."),
        ("Do not use port 8080, use port 9090.", "Use port 9090 now.", "Do not use port 8080"),
    ],
)
def test_a_prohibition_or_the_fact_of_another_person_stays(earlier: str, later: str, kept: str) -> None:
    assert kept in summarise(earlier, later)


@pytest.mark.rule("C.X.9")
def test_what_is_left_of_a_statement_does_not_point_to_what_is_gone() -> None:
    text = summarise("Our server is host-7, never reboot it.", "We use host-9 instead of host-7.")
    assert text == "Constraints:\n- We use host-9."


@pytest.mark.rule("C.X.9")
@pytest.mark.parametrize(
    "said",
    [
        ["If the alarm rings, call +49 30 1234 and wait.", "The alarm moved to hall 7."],
        ["Never raise the price above $30.", "Raise the price of tea to $20."],
        ["Flight HAT1 leaves at 10:00.", "Flight HAT2 leaves at 11:00.", "We take flight HAT2 now."],
        ["The refund of order 7001 was denied.", "The refund of order 7001 is approved now."],
    ],
)
def test_a_rule_for_a_case_a_limit_and_what_an_identifier_is_told_to_be_stay(said: list[str]) -> None:
    text = summarise(*said)
    assert [line for line in said if line not in text] == []


@pytest.mark.rule("C.X.9")
def test_of_two_states_of_one_thing_the_later_stands_later() -> None:
    text = summarise("The refund of order 7001 was denied.", "The refund of order 7001 is approved now.")
    assert -1 < text.find("was denied") < text.find("is approved")


@pytest.mark.rule("C.X.9")
def test_a_thing_named_instead_of_another_takes_its_place() -> None:
    text = summarise("Room 214 is booked for Monday.", "Room 310 is booked for Monday instead of room 214.")
    assert text == "Constraints:\n- Room 310 is booked for Monday."


@pytest.mark.rule("C.X.9")
def test_a_sentence_beside_a_request_for_an_answer_stays() -> None:
    said = "Your reservation ID is HATHAT, paid by card. If you have any further questions, feel free to ask."
    assert "Your reservation ID is HATHAT, paid by card." in extract_summary([assistant(said), user("Fine.")], 400)
