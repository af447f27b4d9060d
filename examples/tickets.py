"""A source of one's own: the tickets of a small JSON file, as `contextbus worker examples/tickets.py` serves them.

A real one would ask the ticket system here. What a source returns is offered, not yet chosen: selection ranks it
against everything else and gives it a share of the budget.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from contextbus.client import Candidate, candidate, source
from contextbus_protocol.questions import Query

TICKETS = Path(__file__).with_name("tickets.json")


def words(text: str) -> set[str]:
    """The words of a text, for a plain count of those that two texts share."""
    return set(re.findall(r"\w{3,}", text.lower()))


@source(id="tickets", kind="rag")
def tickets(query: Query) -> list[Candidate]:
    """The tickets that share the most words with the query, open ones first; a plain function runs in a thread."""
    asked = words(query.text)
    found: list[Candidate] = []
    for ticket in json.loads(TICKETS.read_text(encoding="utf-8")):
        text = f"{ticket['id']} ({ticket['status']}): {ticket['title']}\n{ticket['text']}"
        shared = len(asked & words(text))
        if shared:
            found.append(candidate(ticket["id"], text, shared + 0.5 * (ticket["status"] == "open")))
    return sorted(found, key=lambda one: (-one.score, one.record_id))[: query.limit]
