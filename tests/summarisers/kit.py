"""The extractive summariser as compaction-conformance-kit asks for it, and the kit's table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from compaction_kit import benchmark
from compaction_kit.compacted import CompactedContext
from compaction_kit.session import Turn
from tests.summarisers.probes import BUDGETS, ROUNDS, SEEDS, SUMMARY_LABEL, Row

from contextbus.summarisers.extractive import extract_summary
from contextbus_protocol.chat import ChatMessage, Text, assistant, system, user

NAME: Final = "contextbus-extractive"
_UNBOUNDED: Final = 1_000_000


class Compactor:
    """Reads turns as messages; from the second round on the one turn is the earlier summary, as C.E.2 puts it."""

    name = NAME

    def compact(self, turns: Sequence[Turn], round_num: int = 1, budget_chars: int | None = None) -> CompactedContext:
        """Compact once; the budget is in characters, so a token is a character here."""
        messages = [self._read(turn, round_num) for turn in turns]
        text = extract_summary(messages, _UNBOUNDED if budget_chars is None else budget_chars, len)
        return CompactedContext(text=text, compactor_name=self.name, round_num=round_num)

    @staticmethod
    def _read(turn: Turn, round_num: int) -> ChatMessage:
        if round_num > 1:
            return user(SUMMARY_LABEL + turn.text)
        makers = {"system": system, "user": user, "assistant": assistant}
        maker = makers.get(turn.role)
        return ChatMessage(role="tool", content=(Text(text=turn.text),)) if maker is None else maker(turn.text)


def measure_kit(seeds: Sequence[int] = SEEDS) -> tuple[Row, ...]:
    """The kit's own table for the summariser, with the kit's budgets, seeds and rounds."""
    # the kit's own type is partly unknown
    run: Callable[..., Any] = vars(benchmark)["run_budget_benchmark"]
    table: dict[str, Any] = run({NAME: Compactor}, BUDGETS, seeds, ROUNDS)
    return tuple(
        Row(
            language="kit",
            budget=entry["budget_fraction"],
            survival=entry["randomized"]["overall_final_survival"],
            resolved=entry["semantic"]["resolved_rate"],
            stale=entry["semantic"]["conflicts"]["stale"],
            pairs=entry["semantic"]["distinct_pair_rate"],
            budget_kept=entry["budget_compliant"],
        )
        for entry in table["entries"]
    )
