"""The extractive summary says nothing that was not said: no negation is lost, no other thing's fact, no stale value."""

from __future__ import annotations

import pytest

from contextbus.summarisers.extractive import extract_summary
from contextbus_protocol.chat import user

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
@pytest.mark.parametrize("head", ["No, ", "Yes. ", "Okay! ", "Nein, ", "Oui, ", "Yes - ", "No — ", "Hi ", "Thanks a lot. "])
def test_an_answer_word_with_a_sign_behind_it_is_cut(head: str) -> None:
    assert summarise(f"{head}the crate is K-77.").split("\n")[1] == "- the crate is K-77."
