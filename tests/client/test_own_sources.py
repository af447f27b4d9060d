"""The built-in sources of skills and of the transcript, run by ``open`` itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import contextbus.client as contextbus
from contextbus_protocol.errors import InvalidTypeError

ADA = contextbus.Scope(user_id="ada")
CLAUDE = contextbus.Model("anthropic", "claude-opus-4-6", 200_000, 8_000)


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = tmp_path / "skills" / "tea"
    folder.mkdir(parents=True)
    text = "---\nname: Tea\ndescription: How tea is brewed.\n---\nBoil water.\n"
    (folder / "SKILL.md").write_text(text, encoding="utf-8")
    return folder.parent


@pytest.mark.rule("D.K.1", "D.K.12", "D.K.13")
async def test_a_run_names_both_by_their_ids(skills: Path) -> None:
    async with contextbus.open("memory:", transcript=True, skills=skills) as bus:
        first = await bus.run("first", scope=ADA)
        first.append(contextbus.user("I take tea without milk"))
        await first.flush()
        run = await bus.run("second", scope=ADA, sources=["transcript", "skills", "memory"])
        step = await run.before_model_call([contextbus.user("Make me tea")], model=CLAUDE)
    chosen = {entry.record_id: entry.kind for entry in step.manifest.entries if entry.selected}
    assert chosen == {"first/0": "transcript", "tea": "skills"}
    assert {s.source: s.status.value for s in step.manifest.sources} == dict.fromkeys(
        ("transcript", "skills", "memory"), "ok"
    )


@pytest.mark.broker
async def test_the_transcript_outlives_the_process(skills: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with contextbus.open(data=data, transcript=True, durability="interval") as bus:
        first = await bus.run("first", scope=ADA)
        first.append(contextbus.user("I take tea without milk"))
        await first.flush()
    async with contextbus.open(data=data, transcript=True, skills=skills, durability="interval") as bus:
        run = await bus.run("second", scope=ADA, sources=["transcript", "skills"])
        step = await run.before_model_call([contextbus.user("Make me tea")], model=CLAUDE)
        assert (await bus.verify("second")).is_clean
    assert {entry.record_id for entry in step.manifest.entries if entry.selected} == {"first/0", "tea"}


async def test_a_folder_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="nowhere"):
        async with contextbus.open("memory:", skills=tmp_path / "nowhere"):
            pass


async def test_two_sources_of_skills_need_ids_of_their_own(skills: Path) -> None:
    own = contextbus.SkillsSource(skills)
    with pytest.raises(InvalidTypeError, match="'skills'"):
        async with contextbus.open("memory:", skills=skills, sources=[own]):
            pass
