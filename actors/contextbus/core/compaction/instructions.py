"""Placeholder until the summarisers' part is merged."""


def write_instructions(extra: str | None) -> str:
    return extra or ""
