"""The checker of Gemini's rules finds what it is for: each rule broken once, in a payload that is right otherwise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from tests.core.checkers import errors
from tests.core.gemini_checker import check_gemini

Body = dict[str, Any]
Break = Callable[[Body], object]

GEMINI: Body = {
    "systemInstruction": {"parts": [{"text": "s"}]},
    "contents": [
        {"role": "user", "parts": [{"text": "q"}]},
        {
            "role": "model",
            "parts": [
                {"text": "a"},
                {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "c2ln"},
                {"functionCall": {"name": "g", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "f", "response": {}}},
                {"functionResponse": {"name": "g", "response": {}}},
            ],
        },
        {"role": "model", "parts": [{"text": "b"}]},
        {"role": "user", "parts": [{"text": "c"}]},
    ],
}


def change(*path: str | int, to: object) -> Break:
    def apply(body: Body) -> None:
        target: Any = body["contents"]
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = to

    return apply


def during_the_turn(body: Body) -> None:
    del body["contents"][3:]
    del body["contents"][1]["parts"][1]["thoughtSignature"]


def test_a_right_payload_has_no_findings() -> None:
    assert check_gemini(GEMINI) == []
    body = copy.deepcopy(GEMINI)
    del body["contents"][1]["parts"][1]["thoughtSignature"]  # of a turn that is over
    assert check_gemini(body) == []


BREAKS: list[tuple[str, Break]] = [
    ("gemini.G1", lambda body: body["contents"].clear()),
    ("gemini.G1", lambda body: body["contents"].pop(0)),
    ("gemini.G2", change(0, "role", to="system")),
    ("gemini.G2", change(1, "role", to="user")),
    ("gemini.G2", change(2, "role", to="model")),
    ("gemini.G3", lambda body: body["contents"][0]["parts"].clear()),
    ("gemini.G3", lambda body: body["contents"][0]["parts"][0].clear()),
    ("gemini.G3", change(0, "parts", 0, "text", to="")),
    ("gemini.G4", lambda body: body["contents"].pop(3)),
    ("gemini.G5", change(0, "parts", 0, "inlineData", to={"mimeType": "image/png", "data": "AAAA"})),
    ("gemini.G6", change(1, "parts", 1, "functionCall", "args", to="{}")),
    ("gemini.G6", change(2, "parts", 0, "functionResponse", "response", to="r")),
    ("gemini.G7", lambda body: body["contents"][2]["parts"].pop()),
    ("gemini.G7", lambda body: body["contents"][2]["parts"].reverse()),
    ("gemini.G7", lambda body: body["contents"][1]["parts"].pop()),
    ("gemini.G7", change(2, "parts", 0, "functionResponse", "name", to="h")),
    ("gemini.G7", lambda body: body.update(contents=body["contents"][:2])),
    ("gemini.G7", lambda body: body["contents"][4].update(parts=body["contents"][2]["parts"])),
    ("gemini.G8", during_the_turn),
    ("gemini.G9", lambda body: body.update(cachedContent="cachedContents/1")),
    ("gemini.L8", lambda body: body["contents"][2]["parts"].append({"text": "x"})),
    ("all.S1", change(0, "parts", 0, "text", to="\ud83d")),
]


@pytest.mark.parametrize(("code", "break_it"), BREAKS)
def test_findings(code: str, break_it: Break) -> None:
    body = copy.deepcopy(GEMINI)
    break_it(body)
    found = check_gemini(body)
    assert code in {item for item, _ in found}
    assert (code == "gemini.L8") == (errors(found) == [])
