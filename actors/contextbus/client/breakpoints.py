"""Where a rendered request asks for a cache: what the payload says that it sends."""

from __future__ import annotations

from contextbus.core.cache_control import write_control
from contextbus.core.cache_retention import Body
from contextbus.core.payload import Payload


def controls_of(payload: Payload) -> Body:
    """A body with what of a payload's can tell a retention (C.N.7, C.N.13); its cost is flat in the history.

    The payload knows its breakpoints, and nothing else in it sets a retention (C.N.6).
    """
    places = payload.breakpoints().places
    return {"messages": [{"cache_control": write_control(place.mark.cache)} for place in places]}
