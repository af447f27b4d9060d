"""Fixed scripts: what a model answers to the questions that the examples ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.providers.turns import OVERLOADED, Answer, Call, Overflow, Turn

NOTE = Call(
    "working_memory_add",
    {"items": [{"kind": "observation", "text": "412 invoices since 10:31 UTC have two proration lines."}]},
)
PROPOSAL = Call(
    "propose_command",
    {
        "command": "shipctl jobs pause billing-invoices",
        "reason": "A run that is half done under two versions can charge a customer twice.",
    },
)
ROLL_BACK = Call(
    "propose_command",
    {
        "command": "shipctl rollback billing --to 2026.11.3",
        "reason": "The drift began with 2026.11.4; the schema is compatible.",
    },
)


def operations(tag: str | None = None) -> tuple[Turn, ...]:
    """An incident: parallel calls, an overflow, an overloaded server, a stream cut off within a call's arguments.

    ``tag`` names the element that answers are written in.
    """

    def answer(text: str) -> Answer:
        return Answer(text=text if tag is None else f"<{tag}>{text}</{tag}>")

    status = Call("service_status", {"service": "billing"})
    deploys = Call("list_deploys", {"service": "billing"})
    return (
        Overflow(),
        Answer(
            thinking="Status and deploys are independent: ask for both.",
            text="I look at the service and its deploys.",
            calls=(status, deploys),
        ),
        OVERLOADED,
        Answer(text="The drift began with 2026.11.4.", calls=(Call("count_invoices", {"since": "10:31"}), NOTE)),
        Answer(text="Before the rollback the runner must pause.", calls=(PROPOSAL,), cut=30),
        Answer(thinking="The call did not arrive whole; make it again.", calls=(PROPOSAL, ROLL_BACK)),
        answer("Two commands are proposed: pause billing-invoices, then roll billing back to 2026.11.3."),
        Answer(calls=(Call("count_invoices", {"since": "10:31"}),)),
        answer("Finance should hear before 15:00 UTC: 412 invoices have to be corrected after the rollback."),
    )


def long_operations() -> tuple[Turn, ...]:
    """Over twenty model calls: rounds of parallel calls, with everything that goes wrong in between."""
    names = ("service_status", "list_deploys")
    services = ("billing", "checkout", "search", "login", "ledger", "invoices")
    rounds = [
        Answer(
            thinking=f"Round {number}.",
            text=f"I look at {service}.",
            calls=tuple(Call(name, {"service": service}) for name in names),
        )
        for number, service in enumerate(services * 3)
    ]
    proposal = Answer(text="I propose it.", calls=(Call("count_invoices", {"since": "10:31"}), PROPOSAL), cut=25)
    early = Answer(calls=(PROPOSAL,), cut=40, ending="early")
    broken = Answer(calls=(Call("service_status", {"service": "billing"}), Call("count_invoices", '{"since": 10:3')))
    middle: tuple[Turn, ...] = (OVERLOADED, *rounds[6:9], proposal, early, Answer(calls=(PROPOSAL,)), broken)
    last = (*rounds[9:], Answer(text="All services are looked at."), Answer(text="Nothing further."))
    return (*rounds[:2], Overflow(), *rounds[2:6], *middle, *last)


SCRIPTS: Mapping[str, Callable[[], tuple[Turn, ...]]] = {"operations": operations, "long": long_operations}
