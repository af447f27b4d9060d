"""The pure compile: one input in, one package out (D.A.6, D.A.7).

``compile_context`` needs no bus, loop or file.  In a run, selection calls ``decide`` and placement calls ``place``.
"""

from __future__ import annotations

from contextbus.core.context_input import ContextInput, cut_results, validate_input
from contextbus.core.decision import select
from contextbus.core.estimate import Estimator, make_estimator
from contextbus.core.placement import assemble, render_tail
from contextbus_protocol.commit_requests import PlacedPrompt
from contextbus_protocol.package import Package


def compile_context(
    given: ContextInput, estimator: Estimator | None = None, prompt: PlacedPrompt | None = None
) -> Package:
    """Choose the extra context of one model call: the same input gives the same bytes (D.A.3, D.A.6).

    Args:
        given: All that the outcome depends on; it is not changed.
        estimator: What counts tokens; by default the heuristic ``classes``.
        prompt: What the host's prompt comes to, counted in the input and with ``tail_given`` where it has a tail; its
            messages of the tail stand behind working memory (P.A.3).

    Raises:
        ContextBudgetExceededError: Mandatory content does not fit what the request leaves (D.T.1).
        InvalidRequestError: A required source failed (D.T.2).
        InvalidTypeError: The input, the budget or a candidate is malformed (D.C.4, D.K.27, D.T.4).
    """
    given = cut_results(given)
    validate_input(given)
    made = select(given, make_estimator() if estimator is None else estimator)
    entries = made.decision.manifest.entries[len(made.items) :]
    records = [record for record, entry in zip(made.records, entries, strict=True) if entry.selected]
    tail = render_tail(made.decision, made.items, given.working_memory)
    return assemble(made.decision, tail, made.offers, records, given.query, prompt)
