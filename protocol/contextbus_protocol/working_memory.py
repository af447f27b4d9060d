"""Working memory: what a long task must not lose, as plain data version 1 (D.N), and the patches that change it.

Times are integers, milliseconds since the Unix epoch (D.W.6).
"""

from __future__ import annotations

from typing import Literal

from contextbus_protocol.values import Value

Writer = Literal["host", "model"]
SourceRefKind = Literal["host", "user", "tool-call", "memory", "document", "message"]
TaskStatus = Literal["pending", "in_progress", "done", "failed"]
HypothesisStatus = Literal["proposed", "confirmed", "rejected"]
DecisionStatus = Literal["proposed", "accepted", "reverted"]
QuestionStatus = Literal["open", "answered", "dropped"]
AttemptOutcome = Literal["in-progress", "failed", "abandoned", "succeeded"]


class SourceRef(Value, frozen=True):
    """What an item rests on (D.N.15); only the host may cite ``host``."""

    kind: SourceRefKind
    id: str
    revision: int | None = None


class Item(Value, frozen=True, kw_only=True):
    """Fields that every item has (D.N.2): ``writer`` made it, ``changed_by`` changed it last (D.O.20)."""

    id: str
    text: str
    writer: Writer
    revision: int
    changed_at: int
    changed_by: Writer | None = None
    sources: tuple[SourceRef, ...] = ()


class Goal(Value, frozen=True, kw_only=True):
    """What the task is for; set by the host."""

    text: str
    writer: Writer
    revision: int
    changed_at: int
    sources: tuple[SourceRef, ...] = ()


class Constraint(Item, frozen=True, kw_only=True):
    """A limit that the host set."""


class Observation(Item, frozen=True, kw_only=True):
    """Something seen."""


class Hypothesis(Item, frozen=True, kw_only=True):
    """Something believed; new ones are proposed (D.N.9)."""

    status: HypothesisStatus = "proposed"


class Decision(Item, frozen=True, kw_only=True):
    """Something decided; new ones are proposed (D.N.9)."""

    status: DecisionStatus = "proposed"
    rationale: str | None = None


class Question(Item, frozen=True, kw_only=True):
    """Something to be found out; new ones are open (D.N.9)."""

    status: QuestionStatus = "open"
    answer: str | None = None


class Attempt(Item, frozen=True, kw_only=True):
    """Something tried, with how it went."""

    outcome: AttemptOutcome = "in-progress"
    detail: str | None = None


class Task(Value, frozen=True):
    """One task of the list (D.N.6)."""

    id: str
    title: str
    status: TaskStatus = "pending"
    notes: str | None = None


class TaskList(Value, frozen=True):
    """The tasks and what they are for (D.N.6)."""

    goal: str
    tasks: tuple[Task, ...]


class Tasks(Value, frozen=True, kw_only=True):
    """The task list in a snapshot; ``list_revision`` starts at 1 (D.N.5)."""

    list: TaskList
    list_revision: int
    writer: Writer
    revision: int
    changed_at: int
    active_task_id: str | None = None
    sources: tuple[SourceRef, ...] = ()


class TasksInput(Value, frozen=True):
    """Tasks as they are handed in (D.N.5)."""

    list: TaskList
    active_task_id: str | None = None


class WorkingMemorySnapshot(Value, frozen=True, kw_only=True):
    """Working memory version 1 (D.N.1).

    ``operation_ids`` are the newest applied ids, at most 512, oldest first (D.O.23).
    """

    version: Literal[1]
    scope: str
    revision: int
    goal: Goal | None = None
    constraints: tuple[Constraint, ...] = ()
    tasks: Tasks | None = None
    observations: tuple[Observation, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    decisions: tuple[Decision, ...] = ()
    questions: tuple[Question, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    goal_ref: str | None = None
    operation_ids: tuple[str, ...] = ()


class Operation(Value, frozen=True, kw_only=True, tag_field="op"):
    """Base of the named operations of a patch (D.O.7)."""


class SetGoal(Operation, frozen=True, kw_only=True, tag="set-goal"):
    """Host only: set the goal."""

    text: str
    sources: tuple[SourceRef, ...] = ()


class AddConstraint(Operation, frozen=True, kw_only=True, tag="add-constraint"):
    """Host only: add a constraint."""

    text: str
    sources: tuple[SourceRef, ...] = ()


class RemoveConstraint(Operation, frozen=True, kw_only=True, tag="remove-constraint"):
    """Host only: remove a constraint."""

    id: str


class SetTasks(Operation, frozen=True, kw_only=True, tag="set-tasks"):
    """Host only: replace the task list (D.O.12)."""

    list: TaskList
    sources: tuple[SourceRef, ...] = ()


class SetActiveTask(Operation, frozen=True, kw_only=True, tag="set-active-task"):
    """Set the active task by id; ``None`` clears it (D.O.11)."""

    id: str | None


class AddObservation(Operation, frozen=True, kw_only=True, tag="add-observation"):
    """Add an observation."""

    text: str
    sources: tuple[SourceRef, ...] = ()


class AddHypothesis(Operation, frozen=True, kw_only=True, tag="add-hypothesis"):
    """Add a hypothesis, proposed."""

    text: str
    sources: tuple[SourceRef, ...] = ()


class AddDecision(Operation, frozen=True, kw_only=True, tag="add-decision"):
    """Add a decision, proposed."""

    text: str
    rationale: str | None = None
    sources: tuple[SourceRef, ...] = ()


class AddQuestion(Operation, frozen=True, kw_only=True, tag="add-question"):
    """Add a question, open."""

    text: str
    sources: tuple[SourceRef, ...] = ()


class AnswerQuestion(Operation, frozen=True, kw_only=True, tag="answer-question"):
    """Answer a question."""

    id: str
    answer: str
    sources: tuple[SourceRef, ...] = ()


class DropQuestion(Operation, frozen=True, kw_only=True, tag="drop-question"):
    """Drop a question; it is never rendered again (D.P.3)."""

    id: str


class RecordAttempt(Operation, frozen=True, kw_only=True, tag="record-attempt"):
    """Record an attempt with its outcome."""

    text: str
    outcome: AttemptOutcome = "in-progress"
    detail: str | None = None
    sources: tuple[SourceRef, ...] = ()


class UpdateAttempt(Operation, frozen=True, kw_only=True, tag="update-attempt"):
    """Change an attempt's outcome or detail."""

    id: str
    outcome: AttemptOutcome
    detail: str | None = None


class SetHypothesisStatus(Operation, frozen=True, kw_only=True, tag="set-hypothesis-status"):
    """Host only: judge a hypothesis."""

    id: str
    status: HypothesisStatus


class SetDecisionStatus(Operation, frozen=True, kw_only=True, tag="set-decision-status"):
    """Host only: judge a decision."""

    id: str
    status: DecisionStatus


class RemoveItem(Operation, frozen=True, kw_only=True, tag="remove-item"):
    """Remove an observation, hypothesis, decision, question or attempt."""

    id: str


AnyOperation = (
    SetGoal
    | AddConstraint
    | RemoveConstraint
    | SetTasks
    | SetActiveTask
    | AddObservation
    | AddHypothesis
    | AddDecision
    | AddQuestion
    | AnswerQuestion
    | DropQuestion
    | RecordAttempt
    | UpdateAttempt
    | SetHypothesisStatus
    | SetDecisionStatus
    | RemoveItem
)


class WorkingMemoryPatch(Value, frozen=True, kw_only=True):
    """A list of operations applied all or none (D.O.2, D.O.5)."""

    operation_id: str
    expected_revision: int
    writer: Writer
    operations: tuple[AnyOperation, ...]
