"""Which rule has which test: ``python -m tests.rules`` writes docs/rules.md, ``--check`` fails where it is stale.

Rules are numbered by section; each gets a short name here, in order.  Tests say what they show by
``@pytest.mark.rule("D.B.4")``, and are found by reading the source, so nothing needs to run.  Sections F to J of
the payload's rules (P) are listed where tests carry them and counted otherwise.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
PAGE: Final = TESTS.parent / "docs" / "rules.md"

# One paragraph for each section: its letter and title, then the names of its rules from 1 on.
_PAGE: Final[str] = """
A Scope and purity:
four kinds, one budget; nothing set, nothing added; blocks and manifest; working memory included; versions are
1; pure and deterministic compile; input untouched; tools only counted; query as it is; nothing else imported

B Budget:
two request numbers; window less reservation; messages plus overhead; the smaller of two; default of 8192; floor
and clamp; exported defaults, merged; working memory's cap; split by kind; rest by actual use; shares are
weights; what is mandatory; mandatory beyond the budget; equal fits; the misfit error; its two numbers; room of
optional content; whole or out; option checks; order of the arithmetic; window too small

C Selection:
by descending score; ties by source and id; code point order; finite scores; first pass; skip and go on; second
pass; its order; mandatory taken; placed once; what unchanged means; placed costs nothing; over budget; same
digest once; newest revision competes; cut at the limit; empty text; never an older revision

D Manifest:
entry per candidate; entry fields; no record text; working-memory entries; ids of those; entry order; source
summaries; errors without content; budget numbers; selected tokens; estimator label; refresh reason; pass
number; fallback; placed blocks; changed prefix; redacted flag; package reference; run and step; warnings;
mandatory counts as selected; package form; pass counts retrievals; sources asked; queries stay in blobs;
working-memory entry form

E Blocks:
user messages; append before tail; retrieval block form; its preamble; record attributes; attribute values;
escaping; parse back; manifest order; no empty wrapper; working-memory block; goal and constraints; empty
sections left out; section order; same escaping; status labels; provenance labels

F Placement and prompt cache:
system layer untouched; append block once; placed bytes stay; tail at the end; one tail at most; no memory, no
block; empty memory, no block; thinking models; their tails stay; tail kept flag; hosts keep tails; model table;
placed on success; blocks leave rarely; prefix changed flag; first is unchanged; compared by digest; second call
unchanged; history is the run's; tail kept whole; tail messages; causes of change

G Refresh:
compiler methods; compiler options; step input; one id once; when due; early task change; host asks any time;
task ids compared; steps compared; pass limit; reported once; host bound too; not due, reused; nothing asked on
reuse; reason reported; query made; latest user text; own blocks known; joined and cut; text parts only; empty
query; its reason; what a source gets; present state only; timing has no effect; optional failure; required
failure; failed results refused; a pass per retrieval; two passes; served once; clock decides nothing; what own
blocks are

H State and re-placement:
state is JSON; round trip; bad state refused; placed entry form; gone block placed again; how it is noticed;
texts gone; owed mandatory entries; newest revision only; compete again; stored package again; host stores
outside runs; what else is kept; still owed after failure

I Overflow:
compiled again, smaller; placements replaced; misfit phase; nothing new appears; compaction first; needs a step
before

J Redaction:
forced retrieval; passed after a forget; spends a pass; forgotten stays out; step's placements replaced; blocks
leave history; messages untouched

K Sources:
built-in sources; pinned scope; narrowing; scope fields; nested scopes; inside means; refused before asking; rag
candidates; rag call; charge argument; memory candidates; transcript candidates; skills; never activated;
catalog line; custom source; candidate fields; digest form; nothing found; checked when made; digest checked;
own token count; workers agree; memory store; transcript records; skill records; one bad spoils all

L Accounting:
accounting on requests; charge stays inside; settled or held; unused is free; hosts may ask; usage with the
offer

M Token counting:
one estimator; two heuristics; learns or wraps; how messages count; calibration; bad counter; code points; tool
framing; estimates only; kind per step; calibrated once; chunker's count; cost of parts; counts are facts;
overhead; kind is a label

N Working memory:
parts; item stamps; first revision; constraint ids; tasks input; task form; active task exists; statuses; first
statuses; remembered operations; malformed refused; limits; goal reference; scope label; source references

O Patches:
only way to change; patch form; result form; one revision up; all or none; unchanged otherwise; operations; host
only; host items closed; no host citing; active task; new task list; generated ids; own id maker; revision
conflict; duplicate first; not found and limit; malformed refused; order of checks; stamps of changes; rejected
leaves nothing; no list yet; how long remembered

P Fill order:
critical first; then by kind; dropped left out; ties; skip and go on; same bytes

Q Tools for the model:
memory handle; three tools; adding; updating; bad input; what is returned; operation ids; replay is safe; three
attempts; other agents read only; writer is model; answers in commits; fields by kind; evidence

R Inside a run:
run options; order of a step; what follows from it; joins on success; no tail kept; provider overflow; reopened
step; with other messages; after a forget; injected twice; no run, no option; snapshot or create; run
guarantees; end to end; published figures

S Telemetry:
one span; attributes; source names; no content; observers harmless

T Errors:
mandatory misfit; failed required result; failed required source; type errors; rejections; tool errors

U Values:
budget defaults; refresh defaults; limits; estimator kinds

V1 Vector 1:
budget; head of manifest; blocks; entries; sources; digests; sizes; totals

V2 Vector 2:
first step; reused step; host request; pass limit; block gone; record changed

V3 Vector 3:
created; model's patch; input untouched; forbidden; confirmed; replayed; model's limits

W Libraries and actors:
no outcome by process; errors over a bus; sameness; callbacks; cancellation; times and integers; no loop here;
reports; error codes

Y Enumerations:
reasons; refresh; fallback; warnings; placements; source status; prefix causes
"""


_COMPACTION: Final[str] = """
A compact(), inputs and validation:
a stateless function; order of validation; positive integers; instructions are text; malformed messages; originals
survive; input untouched; explicit model; always attempts; same in, same out

B Messages:
roles and parts; calls and results; approvals; plain parts; opaque parts

C Token counting:
default estimate; serialisation; media needs a counter; counter's input; counter's result; one counter; call sequence;
public estimate; control strings; messages alone; a run's counter

D The replaced range:
one range; leading system messages; retained messages; protecting messages; links; open links; last part decides; links
not cut; largest end; no end; within a turn; orphans; ids used again; call and result in one; a maximum; dead calls

E Composition:
order; summary message; never instructions; request replayed; still summarised; last user message; identity; exchanges
whole; own blocks leave

F The model call:
one request; room; allowance; prompt; instructions; no tools; no splitting; errors unchanged; cancellation; answers

G Result:
compacted; cannot fit; reasons; usage; incomplete; empty; trimmed; too large; half-open indices; growth allowed; empty
input; nothing leaks; what callers keep; summary of a summary

H Triggers:
snapshot; tokens exceed; messages exceed; positive limits; likely cold; unknown is false; no network; truthiness; tokens
given; messages as sent

I Configuration of a run:
opt-in; checked when declared; first match; one estimate; match decides; trigger errors; no match, nothing

J Full-input accounting:
messages and envelope; envelope tools; empty envelope; target less envelope; request overhead; configured target;
compact() alone; output headroom

K Per-step pipeline:
before each step; order; durable first; failure stops; usage counts; transcript untouched; within a turn; cancellation;
turns, commits and races

L Checkpoint:
an event; source count and hash; restore; not applicable; used again; triggers after it; over a replacement; damaged;
one commit; approvals behind it; no false difference

M Measured input baseline:
stored per step; next estimate; scope; cached input; per step only; survives; invalidated; bad usage; aggregates;
malformed; own counter wins; errors write nothing; normalised; tails; never turned on

N Cache evidence and retention:
observation; write alone; cleared; age; read from the body; OpenAI; Anthropic; evidence first; OpenRouter; others
unknown; estimates only; undefined after; what it rests on

O Lifecycle events:
payload; started; completed; failed; restored; sequences; no content; one part a status; kept; flushed at once;
interrupted; old scope; structs and views

X Beyond the reference:
retention policies; input budget; media; min shrink; on failure; thinking; survival; archive; default summariser; model
summarisers; forget
"""


_PAYLOAD: Final[str] = """
A Building a prompt:
a prompt is data; four targets; order; nothing dynamic before history; normalised on the way in; all counted; target of
the model

B Dynamic state:
kinds of state; form; sequences; placement; closing line

C Guardrails and prefill:
output tag; prefill by model; only what was asked for; fixed texts

D Hooks:
what they return; asynchronous, recorded; failures; order

E Targets:
rules of the providers; repairs; tool definitions; cache breakpoints; thinking; arguments that are no object; call ids;
images and documents; importers; plain messages; marks of the reference; missing result; orphan result; approval; empty
history; first is user; last is assistant; merged; late system; empty; repeated id; bad arguments; errors never broken

K Scale of cost:
made once per message
"""

# A line for each API: what its codes begin with, its title, then number and name of each rule; numbers are missing.
_PROVIDERS: Final[str] = """
all All APIs: S1 no lone surrogate
anthropic Anthropic Messages: A1 not empty; A2 first is user; A3 roles; A4 no empty content; A5 prefill; A6 one result \
a call; A7 results first; A8 no orphans; A9 ids; A10 input is an object; A12 tools defined; A13 thinking whole and \
first; A15 cache breakpoints; A17 compaction block; A18 thinking budget; A19 unknown keys; L1 neighbours of one role; \
L2 thinking too late; L3 content behind calls
openai OpenAI Chat Completions: C1 not empty; C2 roles; C3 calls answered; C4 answers match; C5 content present; \
C6 no empty tool_calls; C7 ids; C8 names; C9 arguments; L4 late system; L5 empty user message; L9 repeated ids
responses OpenAI Responses: R1 not empty; R2 call ids; R3 arguments; R4 outputs match; R5 reasoning and its item; \
R6 encrypted content; R7 content types; R8 compaction verbatim; R9 calls answered; L6 id without reasoning; \
L7 items before compaction
gemini Gemini generateContent: G1 not empty, first is user; G2 roles; G3 no empty parts; G4 alternation; G5 one data \
field; G6 objects; G7 responses match; G8 thought signatures; G9 cached content; L8 text beside a response
"""


def _read_providers(page: str) -> dict[str, tuple[str, dict[str, str]]]:
    found: dict[str, tuple[str, dict[str, str]]] = {}
    lines: list[str] = page.replace("\\\n", "").strip().splitlines()
    for line in lines:
        head, _, rules = line.partition(": ")
        prefix, _, title = head.partition(" ")
        pairs = (rule.partition(" ") for rule in rules.split("; "))
        found[prefix] = (title, {f"{prefix}.{number}": name for number, _, name in pairs})
    return found


def _read_sections(page: str) -> dict[str, tuple[str, list[str]]]:
    sections: dict[str, tuple[str, list[str]]] = {}
    paragraphs: list[str] = [*page.strip().split("\n\n")]
    for paragraph in paragraphs:
        head, _, names = paragraph.partition(":\n")
        letter, _, title = head.partition(" ")
        sections[letter] = (title, names.replace("\n", " ").split("; "))
    return sections


PAGES: Final[Mapping[str, tuple[str, Mapping[str, tuple[str, list[str]]]]]] = {
    "D": ("Context", _read_sections(_PAGE)),
    "C": ("Compaction", _read_sections(_COMPACTION)),
    "P": ("Payload, A to E and K", _read_sections(_PAYLOAD)),
}
PROVIDERS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = _read_providers(_PROVIDERS)
OTHERS: Final[Mapping[str, tuple[str, Mapping[str, int]]]] = {
    "P": ("Payload, F to J", dict(zip("FGHIJ", (7, 7, 8, 7, 9), strict=True))),
}


def names_of(section: str, page: str = "D") -> list[str]:
    """The short names of a section's rules, in order."""
    return PAGES[page][1][section][1]


WAITING: Final = frozenset({"D.R.10"})
"""Rules that wait: core memory is not there yet."""


def known_rules(pages: Sequence[str] = ("D", "C")) -> list[str]:
    """Every numbered rule of the pages that have names; D.R begins with 0."""
    rules = ["D.R.0"] if "D" in pages else []
    for page in pages:
        rules += [f"{page}.{s}.{n}" for s in PAGES[page][1] for n in range(1, len(names_of(s, page)) + 1)]
    return rules


def provider_rules() -> list[str]:
    """Every rule of the providers' APIs."""
    return [rule for _, rules in PROVIDERS.values() for rule in rules]


SCOPE: Final = frozenset((*known_rules(("D", "C", "P")), *provider_rules())) - WAITING
"""What the present release promises; each of these has a test."""


def collect(folder: Path = TESTS) -> dict[str, list[str]]:
    """Rule ids with the tests that carry them, as ``file::test`` below the folder."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inherited = _module_rules(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                if any(_expects_failure(decorator) for decorator in node.decorator_list):
                    continue  # what is known not to hold shows nothing
                rules = [rule for decorator in node.decorator_list for rule in _marked(decorator)]
                for rule in dict.fromkeys((*inherited, *rules)):
                    found.setdefault(rule, []).append(f"{path.relative_to(folder).as_posix()}::{node.name}")
    return found


def _module_rules(tree: ast.Module) -> list[str]:
    rules: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets):
            value = node.value
            rules += [r for mark in (value.elts if isinstance(value, ast.List) else [value]) for r in _marked(mark)]
    return rules


def _expects_failure(node: ast.expr) -> bool:
    call = node.func if isinstance(node, ast.Call) else node
    return isinstance(call, ast.Attribute) and call.attr == "xfail"


def _marked(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "rule":
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value


def unknown(found: Mapping[str, list[str]]) -> list[str]:
    """Rule ids that tests carry and that no page has."""
    known = {*known_rules(tuple(PAGES)), *provider_rules()}
    known |= {
        f"{page}.{section}.{n}"
        for page, (_, sections) in OTHERS.items()
        for section, count in sections.items()
        for n in range(1, count + 1)
    }
    begins = (*(f"{page}." for page in PAGES), *(f"{prefix}." for prefix in PROVIDERS))
    return sorted(rule for rule in found if rule.startswith(begins) and rule not in known)


def missing(found: Mapping[str, list[str]]) -> list[str]:
    """Rules in scope that no test carries."""
    return sorted(SCOPE - found.keys())


def render(found: Mapping[str, list[str]]) -> str:
    """The page."""
    counts: list[str] = []
    for page, (title, _) in PAGES.items():
        rules = known_rules((page,))
        tested = sum(1 for rule in rules if rule in found)
        counts.append(f"{title}: {len(rules)} rules, {tested} tested, {len(rules) - tested} open.")
    done = sum(1 for rule in provider_rules() if rule in found)
    count = len(provider_rules())
    counts.append(f"Providers: {count} rules, {done} tested, {count - done} open.")
    in_scope = sum(1 for rule in SCOPE if rule in found)
    counts.append(f"In the scope of this release: {len(SCOPE)}, {in_scope} tested.")
    for page, (title, numbers) in OTHERS.items():
        count = sum(numbers.values())
        done = sum(1 for rule in found if rule.startswith(tuple(f"{page}.{section}." for section in numbers)))
        counts.append(f"{title}: {count} rules, {done} tested, {count - done} open.")
    lines = ["# Rules and their tests", "", "Written by `python -m tests.rules`; do not edit.", "", " ".join(counts)]
    for page, (_, sections) in PAGES.items():
        for section, (title, names) in sections.items():
            heading = f"## {section}. {title}" if page == "D" else f"## {page}.{section}. {title}"
            lines += ["", heading, "", "| rule | what | state | tests |", "|---|---|---|---|"]
            rows = [("D.R.0", "one compile per step")] if (page, section) == ("D", "R") else []
            rows += [(f"{page}.{section}.{n}", name) for n, name in enumerate(names, 1)]
            lines += [_row(rule, name, found.get(rule, [])) for rule, name in rows]
    for title, names_by_rule in PROVIDERS.values():
        lines += ["", f"## Providers: {title}", "", "| rule | what | state | tests |", "|---|---|---|---|"]
        lines += [_row(rule, name, found.get(rule, [])) for rule, name in names_by_rule.items()]
    for page, (title, numbers) in OTHERS.items():
        lines += ["", f"## {title}", "", "| section | rules | tested | tests |", "|---|---|---|---|"]
        for section, count in numbers.items():
            carried = {r: t for r, t in found.items() if r.startswith(f"{page}.{section}.")}
            listed = ", ".join(sorted(carried, key=lambda r: int(r.rpartition(".")[2])))
            files = sorted({test.partition("::")[0] for tests in carried.values() for test in tests})
            shown = "".join(f" {file}<br>" for file in files).removesuffix("<br>").strip()
            lines.append(f"| {page}.{section} | {count} | {listed or 'open'} | {shown} |")
    return "\n".join(lines) + "\n"


def _row(rule: str, name: str, tests: list[str]) -> str:
    state = "tested" if tests else "open"
    return f"| {rule} | {name} | {state} | {'<br>'.join(tests)} |"


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` say what is stale or missing."""
    found = collect()
    page = render(found)
    if "--check" not in arguments:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    complaints = [f"{rule}: in scope, and no test carries it" for rule in missing(found)]
    complaints += [f"{rule}: no such rule, yet {found[rule][0]} carries it" for rule in unknown(found)]
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        complaints.append("docs/rules.md is stale: run python -m tests.rules")
    for complaint in complaints:
        print(complaint)  # noqa: T201  (a command line)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
