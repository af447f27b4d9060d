"""The source of skills: lines by match, bodies only for runs that are owed them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sources.conftest import Ask

from contextbus.core.skill_loads import is_skill_id
from contextbus.sources.answers import check_answer, handler
from contextbus.sources.interface import candidate
from contextbus.sources.skill_catalog import MAX_SKILLS, SkillCatalog
from contextbus.sources.skill_files import (
    MAX_DESCRIPTION,
    MAX_NAME,
    MAX_SKILL_BYTES,
    MalformedSkillError,
    Skill,
    parse_skill,
)
from contextbus.sources.skills import SkillsSource, skills_source
from contextbus_protocol.questions import Failed, Offered

LATER = 2_000_000_000_000_000_000


def skill_text(
    name: str = "PDF forms", description: str = "Fill in PDF forms.", body: str = "# Steps\n\n1. Read."
) -> str:
    return f"---\nname: {name}\ndescription: {description}\nlicense: MIT\n---\n\n{body}\n"


def write(folder: Path, path: str, text: str | bytes) -> None:
    file = folder / path / "SKILL.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "skills"
    write(made, "pdf", skill_text())
    write(made, "office/xlsx", skill_text("Spreadsheets", "Read and write tables of forms.", "Use openpyxl."))
    write(made, "office/notes", "no front matter: Fill in PDF forms")
    return made


@pytest.mark.rule("D.K.1", "D.K.13", "D.K.15", "D.K.26")
async def test_a_match_offers_catalog_lines_that_are_optional(folder: Path, ask: Ask) -> None:
    made = skills_source(folder)
    found = await made.query(ask("PDF"))
    assert [(c.record_id, c.text) for c in found] == [("pdf", "PDF forms (pdf): Fill in PDF forms.")]
    assert not found[0].mandatory
    both = await made.query(ask("forms"))
    assert [c.record_id for c in both] == ["pdf", "office/xlsx"]  # a match in the name is the better one
    assert both[0].score > both[1].score > 0
    assert [c.record_id for c in await made.query(ask("forms", limit=1))] == ["pdf"]
    assert (made.id, made.kind, made.required) == ("skills", "skills", False)
    await made.aclose()


@pytest.mark.rule("D.K.14")
@pytest.mark.parametrize("text", ["openpyxl", "Use openpyxl.", "# Steps 1. Read", "pdf/body", "office/xlsx/body"])
async def test_a_match_never_offers_a_body(folder: Path, ask: Ask, text: str) -> None:
    made = SkillsSource(folder)
    assert all(not c.mandatory and "/body" not in c.record_id for c in await made.query(ask(text)))
    assert await made.query(ask("openpyxl")) == []
    await made.aclose()


@pytest.mark.rule("D.K.13", "D.K.26", "D.H.8")
async def test_a_run_that_is_owed_a_body_gets_it_as_mandatory_first_and_once(folder: Path, ask: Ask) -> None:
    made = SkillsSource(folder)
    owed = ("office/xlsx/body", "gone/body", "pdf", "office/xlsx/body")
    found = await made.query(msgspec.structs.replace(ask("PDF"), records=owed))
    assert [(c.record_id, c.mandatory) for c in found] == [("office/xlsx/body", True), ("pdf", False)]
    assert found[0].text == "Use openpyxl."
    only = await made.query(msgspec.structs.replace(ask("PDF"), records=owed, only_records=True))
    assert [c.record_id for c in only] == ["office/xlsx/body"]
    tight = await made.query(msgspec.structs.replace(ask("PDF", limit=1), records=owed))
    assert [c.record_id for c in tight] == ["office/xlsx/body", "pdf"]
    await made.aclose()


@pytest.mark.rule("D.K.19")
@pytest.mark.parametrize("text", ["kubernetes", "", " ", "?!"])
async def test_nothing_found_is_an_empty_answer(folder: Path, ask: Ask, text: str) -> None:
    made = SkillsSource(folder)
    answer = await handler(made)(ask(text))
    assert isinstance(answer, Offered)
    assert answer.candidates == ()
    assert await made.query(msgspec.structs.replace(ask(text), only_records=True)) == []
    await made.aclose()


async def test_a_malformed_file_is_left_out_listed_and_logged_once_without_its_text(folder: Path, ask: Ask) -> None:
    with structlog.testing.capture_logs() as logged:
        made = SkillsSource(folder, fresh_seconds=0.0)
        assert set(await made.refresh()) == {"pdf", "office/xlsx"}
        await made.query(ask("PDF"))
    (issue,) = made.issues
    assert (issue.path, issue.code) == ("office/notes/SKILL.md", "front-matter")
    assert "line ---" in issue.problem
    (line,) = logged
    told = (line["event"], line["source"], line["path"], line["reason"])
    assert told == ("skill_skipped", "skills", "office/notes/SKILL.md", "front-matter")
    assert "Fill in" not in repr(logged)
    await made.aclose()


async def test_the_folder_is_followed(folder: Path, ask: Ask) -> None:
    made = SkillsSource(folder, fresh_seconds=0.0)
    assert [c.record_id for c in await made.query(ask("tables"))] == ["office/xlsx"]
    await anyio.Path(folder / "office/xlsx/SKILL.md").write_text(skill_text("Sheets", "Draw charts.", "Use charts."))
    await anyio.Path(folder / "office/notes/SKILL.md").write_text(skill_text("Notes", "Keep tables of notes."))
    await anyio.Path(folder / "pdf/SKILL.md").unlink()
    assert [c.record_id for c in await made.query(ask("tables"))] == ["office/notes"]
    assert set(made.skills) == {"office/notes", "office/xlsx"}
    assert made.issues == ()
    owed = await made.query(msgspec.structs.replace(ask(""), records=("office/xlsx/body", "pdf/body")))
    assert [c.text for c in owed] == ["Use charts."]
    await made.aclose()


async def test_a_folder_that_is_missing_fails_the_query_and_not_the_source(tmp_path: Path, ask: Ask) -> None:
    made = SkillsSource(tmp_path / "later", fresh_seconds=0.0)
    answer = await handler(made)(ask("PDF"))
    assert isinstance(answer, Failed)
    assert answer.origin_type == "NotADirectoryError"
    await anyio.to_thread.run_sync(write, tmp_path / "later", "pdf", skill_text())
    assert [c.record_id for c in await made.query(ask("PDF"))] == ["pdf"]
    await made.aclose()


@pytest.mark.rule("D.K.23")
async def test_workers_agree_whatever_their_folders_are(folder: Path, tmp_path: Path) -> None:
    assert SkillsSource(folder).options_digest == SkillsSource(tmp_path).options_digest


def test_a_file_that_changes_within_the_resolution_of_its_time_is_read_again(folder: Path) -> None:
    catalog = SkillCatalog(folder)
    file = folder / "pdf" / "SKILL.md"
    changed = file.stat().st_mtime_ns
    catalog.refresh(changed)
    file.write_text(skill_text("PDX forms"), encoding="utf-8")
    os.utime(file, ns=(changed, changed))
    catalog.refresh(changed + 1)
    assert catalog.skills["pdf"].name == "PDX forms"
    assert catalog.refresh(LATER) == ()
    catalog.close()


def test_the_file_of_the_folder_itself_has_the_folders_name_and_the_second_of_an_id_is_an_issue(tmp_path: Path) -> None:
    folder = tmp_path / "pdf"
    write(folder, ".", skill_text("Root"))
    write(folder, "pdf", skill_text("Inner"))
    write(folder, "with blank", skill_text())
    write(folder, "pdf/body", skill_text())
    catalog = SkillCatalog(folder)
    new = catalog.refresh(LATER)
    assert {skill.name for skill in catalog.skills.values()} == {"Root"}
    assert [issue.path for issue in new] == ["pdf/SKILL.md", "pdf/body/SKILL.md", "with blank/SKILL.md"]
    assert all("rename" in issue.problem for issue in new)
    catalog.close()


def test_a_folder_has_limits_of_size_and_number(tmp_path: Path) -> None:
    write(tmp_path, "a-large", skill_text(body="x" * MAX_SKILL_BYTES))
    for number in range(MAX_SKILLS + 1):
        write(tmp_path, f"s{number:05}", skill_text())
    catalog = SkillCatalog(tmp_path)
    assert [(issue.path, issue.code) for issue in catalog.refresh(LATER)] == [
        ("a-large/SKILL.md", "large"),
        (f"s{MAX_SKILLS:05}/SKILL.md", "many"),
    ]
    assert len(catalog.skills) == MAX_SKILLS
    catalog.close()


def test_links_and_loops_of_links_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "outside", "", skill_text("Outside"))
    folder = tmp_path / "skills"
    write(folder, "pdf", skill_text())
    (folder / "pdf" / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "away").symlink_to(tmp_path / "outside", target_is_directory=True)
    for name, target in (("itself", "SKILL.md"), ("linked", str(tmp_path / "outside" / "SKILL.md"))):
        (folder / name).mkdir()
        (folder / name / "SKILL.md").symlink_to(target)
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / "SKILL.md")
    catalog = SkillCatalog(folder)
    assert catalog.refresh(LATER) == ()
    assert list(catalog.skills) == ["pdf"]
    catalog.close()


def bomb(pattern: str) -> bytes:
    """Front matter each of whose lines stands for ten times what the one before does."""
    lines = ["a0: &a0 {k: v}"]
    lines += [pattern.format(i, ",".join([f"*a{i - 1} "] * 10)) for i in range(1, 100)]
    return "\n".join(["---", *lines, "name: a", "description: b", "---", "text"]).encode()


@pytest.mark.parametrize("pattern", ["a{0}: &a{0} [{1}]", "a{0}: &a{0} {{<<: [{1}]}}"], ids=["aliases", "merge keys"])
def test_front_matter_that_unfolds_without_end_costs_what_is_written(pattern: str) -> None:
    assert parse_skill("a", bomb(pattern)).name == "a"
    with pytest.raises(MalformedSkillError, match="name"):
        parse_skill("a", bomb(pattern).replace(b"name: a", b"name: *a99"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "line ---"),
        (b"# Title\n\ntext", "line ---"),
        (b"---\nname: a\ndescription: b\n", "line ---"),
        (b"---\nname: a\ndescription: b\n---\n \n", "no text"),
        (b"---\nname: a\ndescription: use it: now\n---\ntext", "line 3"),
        (b"---\nname: [\n---\ntext", "no YAML"),
        (b"---\nname: a\n---\ntext", "description"),
        (b"---\nname: 7\ndescription: b\n---\ntext", "name"),
        (b"---\nname: ' '\ndescription: b\n---\ntext", "name is empty"),
        (b"---\n- name\n---\ntext", "name and description"),
        (b"---\n---\ntext", "name and description"),
        (b"---\nname: a\ndescription: b\nx: !!python/object/apply:os.getcwd []\n---\ntext", "no YAML"),
        (b"---\nx: " + b"[" * 9000 + b"\n---\ntext", "no YAML"),
        (b"---\nname: a\ndescription: " + b"b" * (MAX_DESCRIPTION + 1) + b"\n---\ntext", "shorten"),
        (b"---\nname: " + b"a" * (MAX_NAME + 1) + b"\ndescription: b\n---\ntext", "shorten"),
        (b"---\nname: a\ndescription: b\nx: " + b"y" * 20_000 + b"\n---\ntext", "line ---"),
        (b"---\nname: \xff\n---\ntext", "UTF-8"),
        (b"---\nname: a\x00\ndescription: b\n---\ntext", "no YAML"),
        (bytes(range(256)), "UTF-8"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(data: bytes, said: str) -> None:
    with pytest.raises(MalformedSkillError, match=said):
        parse_skill("x", data)


@pytest.mark.rule("D.K.15")
@pytest.mark.parametrize(
    "data",
    [
        "---\nname: a\ndescription: >\n  one\n  two\n---\ntext\n---\nmore",
        "\ufeff---\r\nname: a\r\ndescription: one two\r\n---\r\ntext\r\n---\r\nmore\r\n",
        '--- \nname: "a"\ndescription: "one\\ntwo"\n...\ntext\n---\nmore',
    ],
)
def test_front_matter_as_people_write_it(data: str) -> None:
    assert parse_skill("x", data.encode()) == Skill("x", "a", "one two", "text\n---\nmore")


def as_file(name: str, description: str, body: str) -> bytes:
    # JSON is YAML, and quotes whatever a text holds.
    front = f"name: {json.dumps(name)}\ndescription: {json.dumps(description)}"
    return f"---\n{front}\n---\n{body}".encode("utf-8", "replace")


@pytest.mark.rule("D.K.15", "D.K.21", "D.K.27")
@settings(max_examples=150, deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=200),
        st.builds(as_file, st.text(max_size=20), st.text(max_size=40), st.text(max_size=40)),
    ),
    skill=st.text(min_size=1, max_size=10).filter(is_skill_id),
)
def test_whatever_a_file_holds_it_is_a_skill_of_one_line_or_an_issue(data: bytes, skill: str) -> None:
    try:
        made = parse_skill(skill, data)
    except MalformedSkillError:
        return
    assert len(made.line.splitlines()) == 1
    assert made.line.startswith(made.name)
    assert made.description in made.line
    check_answer([candidate(made.id, made.line, 1.0), candidate(f"{made.id}/body", made.body, 1.0, mandatory=True)])
