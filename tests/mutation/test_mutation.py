"""The tool finds what tests notice and what they do not, and changes nothing that cannot matter."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from tests.mutation.edits import describe, list_edits
from tests.mutation.report import is_survivor, read_equivalent, write_report
from tests.mutation.running import Mutant, Verdict

MODULE = '''
"""A counter."""

LIMIT = 3


def within(count: int) -> bool:
    """Whether a count is within the limit."""
    return count <= LIMIT


def label(count: int) -> str:
    """Only looked at, never compared."""
    return f"{count} of many"


def forgotten(count: int) -> int:
    """No test calls it."""
    return count + 1


def wait(count: int) -> int:
    """Without its last line it never ends."""
    while count > 0:
        count -= 1
    return count
'''
TESTS = """
import pytest
from tiny.counting import label, wait, within

@pytest.mark.parametrize("count", [3, 4])
def test_within(count):
    assert within(count) is (count < 4)

def test_label():
    assert label(1)

def test_wait():
    assert wait(3) == 0
"""
RUN = """
import msgspec, sys
from pathlib import Path
from tests.mutation.covering import find_covering
from tests.mutation.project import Project
from tests.mutation.running import Sources, run_mutants

project = Project(Path(sys.argv[1]), "source", "tiny", ("tests",))
covering = find_covering(project)
sources = Sources(project)
verdicts = []
works = [sources.control("tiny.counting", covering)]
works += [sources.prepare(module, edit, covering) for module, edit in sources.sample(1000, 0)]
run_mutants(project, iter(works), covering, 2, verdicts.append, least=1.0)
print(msgspec.json.encode(verdicts).decode())
"""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> list[Verdict]:
    """What the tool finds in a small project."""
    root = tmp_path_factory.mktemp("project")
    for name, text in {
        "source/tiny/__init__.py": "",
        "source/tiny/counting.py": MODULE,
        "tests/test_counting.py": TESTS,
        "pytest.ini": "[pytest]\npythonpath = source\nmarkers =\n    broker: x\n    data: x\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(root)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=list[Verdict])


def outcomes(verdicts: list[Verdict], old: str) -> dict[str, str]:
    return {verdict.mutant.new: verdict.outcome for verdict in verdicts if verdict.mutant.old == old}


def test_what_a_test_notices_is_killed(verdicts: list[Verdict]) -> None:
    assert outcomes(verdicts, "return count <= LIMIT") == {
        "return count < LIMIT": "killed",
        "return count > LIMIT": "killed",
        "return None": "killed",
    }


def test_what_runs_at_import_meets_the_tests_of_what_reads_it(verdicts: list[Verdict]) -> None:
    assert outcomes(verdicts, "LIMIT = 3") == {"LIMIT = 4": "killed", "LIMIT = 2": "killed"}


def test_what_no_test_notices_survives(verdicts: list[Verdict]) -> None:
    found = outcomes(verdicts, "return f'{count} of many'")
    assert found == {"return None": "killed", "return f'{count} of many_x'": "survived"}


def test_what_no_test_runs_is_uncovered(verdicts: list[Verdict]) -> None:
    assert set(outcomes(verdicts, "return count + 1").values()) == {"uncovered"}


def test_what_never_ends_is_ended(verdicts: list[Verdict]) -> None:
    assert outcomes(verdicts, "count -= 1") == {"count += 1": "timeout", "count -= 0": "timeout", "pass": "timeout"} | {
        "count -= 2": "killed"
    }


def changes(source: str) -> list[tuple[str, str]]:
    return [describe(edit) for edit in list_edits(ast.parse(textwrap.dedent(source)))]


@pytest.mark.parametrize(
    "source",
    [
        '"""A module."""',
        "x: int",
        "def f(x: Literal['a'] = None) -> tuple[int, str]: ...",
        "Kind = Literal['a', 'b']",
        "Either = A | B",
        "__slots__ = ('a', 'b')",
        "__all__ = ['a']",
        "class Value(Struct, frozen=True, tag='v'):\n    name: str",
        "class Seen(Protocol):\n    def see(self, x: int = 3) -> None: ...",
        "if TYPE_CHECKING:\n    LIMIT = 3",
        "def f(x):\n    assert_never(x + 1)",
        "x = cast('int', y)",
        "@cache(size=3)\ndef f(): ...",
        "import a.b",
    ],
)
def test_what_cannot_matter_is_left_alone(source: str) -> None:
    assert changes(source) == []


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("def f():\n    return a and not b", {"return a or not b", "return not b", "return a", "return a and b"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("x = sorted(a, reverse=True)", {"x = list(a)", "x = sorted(a, reverse=False)", "x = sorted(a)"}),
        ("x = a[i:]", {"x = a[:]"}),
        ("x = [a for a in b if a]", {"x = [a for a in b]"}),
        ("x = -a", {"x = a"}),
        ("x = f(a, key='k')", {"x = f(a)", "x = f(a, key='k_x')"}),
        ("x = zip(a, b, strict=c)", set[str]()),
        ("if a:\n    f(b)", {"if not a:", "pass"}),
        ("if a:\n    raise ValueError(f'no {a + 1}')", {"if not a:", "pass"}),
        ("for a in b:\n    continue", {"pass"}),
        ("x.y = a", {"pass"}),
        ("match a:\n    case 'b' if c:\n        d()", {"case 'b_x' if c:", "case 'b':", "pass"}),
        ("def f(a=1):\n    return a", {"def f(a=2):", "def f(a=0):", "return None"}),
    ],
)
def test_changes_are_made(source: str, made: set[str]) -> None:
    assert {new for _, new in changes(source)} >= made
    assert all(old != new for old, new in changes(source))


def test_of_a_long_line_what_is_around_the_change_is_shown() -> None:
    (old, new), *_ = changes(f"x = f({'a, ' * 60}b < c, {'d, ' * 60}e)")
    assert " b < c, d, " in old
    assert " b <= c, d, " in new
    assert old[0] == old[-1] == new[0] == new[-1] == "…"
    assert max(len(old), len(new)) < 130


def test_describing_a_change_leaves_the_tree_as_it_was() -> None:
    tree = ast.parse(MODULE)
    before = ast.dump(tree, include_attributes=True)
    edits = list_edits(tree)
    for edit in edits:
        describe(edit)
    assert ast.dump(tree, include_attributes=True) == before
    assert len(edits) > 15


def test_every_change_compiles_to_something_else() -> None:
    tree = ast.parse(MODULE)
    codes = [ast.dump(tree)]
    for edit in list_edits(tree):
        old = edit.apply()
        compile(tree, "counting.py", "exec")
        codes.append(ast.dump(tree))
        edit.put(old)
    assert len(set(codes)) == len(codes)


def test_listed_changes_are_counted_apart(tmp_path: Path) -> None:
    page = tmp_path / "survivors.md"
    page.write_text("# Survivors\n\n- `a/b.py`: ``x < 1`` => ``x <= 1``: x is never 1.\n", encoding="utf-8")
    equivalent = read_equivalent(page)
    listed = Verdict(Mutant("b", "a/b.py", 3, "x < 1", "x <= 1"), "survived", 2)
    other = Verdict(Mutant("b", "a/b.py", 3, "x < 1", "x >= 1"), "survived", 2)
    killed = Verdict(Mutant("b", "a/b.py", 4, "y", "z"), "killed", 2)
    assert [is_survivor(verdict, equivalent) for verdict in (listed, other, killed)] == [False, True, False]
    report = write_report([listed, other, killed], equivalent, 5, 9)
    assert report.startswith("3 of 9 mutants (seed 5): 1 killed, 0 timeout, 1 equivalent, 1 survived, 0 uncovered")
    assert "| a/b.py | 1 | 0 | 1 | 1 | 0 |" in report
    assert "- `a/b.py:3`: ``x < 1`` => ``x >= 1``" in report
    assert "``x <= 1``" not in report
    assert read_equivalent(tmp_path / "absent.md") == frozenset()


def test_the_page_of_equivalent_changes_names_lines_that_exist() -> None:
    root = Path(__file__).parents[2]
    lines = {
        path: {describe(edit) for edit in list_edits(ast.parse((root / path).read_text(encoding="utf-8")))}
        for path in {path for path, _, _ in read_equivalent()}
    }
    assert [key for key in read_equivalent() if key[1:] not in lines[key[0]]] == []
