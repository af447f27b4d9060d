"""Three layers that accept a payload or name what is wrong with it; the first two know nothing of the code they check.

They are the official SDKs' types, the checkers of order and pairing, and the validator that is part of the product.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from contextbus.core.payload import Payload
from contextbus.validation import check_types, validate
from tests.core.checkers import CHECKERS, check_anthropic
from tests.payloads.sdk_types import find_type_faults

MAY_BE_FOUND = {"gemini.L8": {"merged", "late-result", "late-system"}, "openai.L4": {"late-system"}}
"""The two L rules that cannot always be kept, and the repairs of which one must be listed then (P.E.23)."""


def find_faults(payload: Payload) -> tuple[str, ...]:
    """What a layer refuses in a payload, with the layer's name; empty if all three accept it."""
    text = payload.json()
    body = json.loads(text)
    target = payload.target
    beta = target == "anthropic" and b'{"type":"compaction"' in text
    faults = [f"types: {fault}" for fault in find_type_faults(body, f"{target}-beta" if beta else target)]
    repairs = {repair.code for repair in payload.repairs}
    found = _order(payload, body)
    faults += [f"order: {code} at {place}" for code, place in found if not MAY_BE_FOUND.get(code, set()) & repairs]
    model = getattr(payload.rendering.target, "model_id", None)
    findings = validate(body, target, model)
    listed = {code for code, _ in found}
    for finding in findings:
        allowed = finding.severity == "warning" and finding.rule in MAY_BE_FOUND and finding.rule in listed
        if not allowed:
            faults.append(f"validate: {finding.rule} at {finding.place}: {finding.severity}, {finding.message}")
    typed = check_types(body, target)
    faults += ["check_types: not asked"] if typed is None else [f"check_types: {f.place}: {f.message}" for f in typed]
    if msgspec.json.decode(text) != body:  # a second reader, which takes no lone surrogate
        faults.append("json: read differently")
    return tuple(faults)


def _order(payload: Payload, body: dict[str, Any]) -> list[tuple[str, str]]:
    if payload.target == "anthropic":
        return check_anthropic(body, prefill=payload.rendering.target.takes_prefill)
    return CHECKERS[payload.target](body)
