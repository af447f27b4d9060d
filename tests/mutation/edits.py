"""Single changes of a module's syntax tree, each of which a test should notice.

What cannot change what a program does is never touched: docstrings, annotations and type aliases, ``__slots__`` and
``__all__``, decorators and class options, interfaces, and the texts of errors that are raised on the spot.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

ORDERINGS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitAnd,
}
FUNCTIONS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
METHODS: Final = {"startswith": "endswith", "endswith": "startswith", "lstrip": "rstrip", "rstrip": "lstrip"}
FORMS_OF_TYPES: Final = frozenset(
    (
        "Annotated",
        "Callable",
        "ClassVar",
        "Final",
        "Literal",
        "Mapping",
        "Sequence",
        "dict",
        "frozenset",
        "list",
        "tuple",
    )
)
NAMED_BY_TEXT: Final = frozenset(("cast", "NewType", "TypeVar", "ParamSpec"))
NOT_PROGRAM: Final = frozenset(("__all__", "__slots__"))
LONG: Final = 120
"""Characters of a line that is shown whole; of a longer one, what is around the change."""
AROUND: Final = 50
SAFEGUARDS: Final = frozenset(("strict",))
"""Keyword arguments that only turn a mistake into an error."""


class Edit(NamedTuple):
    """One change: ``new`` in the place of ``owner.field`` or ``owner.field[place]``.

    ``statement`` holds the place; ``first`` and ``last`` are its lines.  ``name`` is what a change outside functions
    defines; inside functions it is None.
    """

    statement: ast.stmt
    owner: ast.AST
    field: str
    place: int | None
    new: object
    first: int
    last: int
    name: str | None

    def apply(self) -> object:
        """Change the tree; gives back what was there, for ``put``."""
        if self.place is None:
            old: object = getattr(self.owner, self.field)
        else:
            old = getattr(self.owner, self.field)[self.place]
        self.put(self.new)
        return old

    def put(self, value: object) -> None:
        """Set the place to a value."""
        if self.place is None:
            setattr(self.owner, self.field, value)
        else:
            getattr(self.owner, self.field)[self.place] = value


class _Place(NamedTuple):
    """Where the walk is: the statement, what a change of it defines, and whether texts are an error's."""

    statement: ast.stmt
    name: str | None
    in_raise: bool = False


def list_edits(tree: ast.Module) -> list[Edit]:
    """All changes of a module, in the order of its text."""
    return list(_block(tree, "body", "<module>"))


def describe(edit: Edit) -> tuple[str, str]:
    """The line of code that an edit changes, as it was and as it is then; of a long one what is around the change."""
    before = _unparse(edit)
    old = edit.apply()
    after = _unparse(edit)
    edit.put(old)
    for tag, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            return _crop(" ".join(map(str.strip, before[a:b])), " ".join(map(str.strip, after[c:d])))
    return before[0], after[0]


def _crop(before: str, after: str) -> tuple[str, str]:
    """Two lines without what they have in common far from where they differ."""
    if max(len(before), len(after)) <= LONG:
        return before, after
    start = _common(before, after)
    end = _common(before[start:][::-1], after[start:][::-1])
    cut = max(0, start - AROUND)
    rest = max(0, end - AROUND)

    def around(line: str) -> str:
        return "…" * (cut > 0) + line[cut : len(line) - rest] + "…" * (rest > 0)

    return around(before), around(after)


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _unparse(edit: Edit) -> list[str]:
    # a removed statement is replaced in its owner, so the owner is what shows it
    shown = edit.owner if isinstance(edit.new, ast.stmt) and not isinstance(edit.owner, ast.Module) else edit.statement
    if isinstance(edit.owner, ast.Module) and edit.place is not None:
        shown = edit.owner.body[edit.place]
    return ast.unparse(shown).splitlines()


def _block(owner: ast.AST, field: str, name: str | None) -> Iterator[Edit]:
    """The changes of a list of statements."""
    body: list[ast.stmt] = getattr(owner, field)
    for index, statement in enumerate(body):
        if _is_removable(statement):
            yield _edit(_Place(statement, name), owner, field, index, ast.Pass())
        yield from _statement(statement, name)


def _is_removable(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return False
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Continue() | ast.Break():
            return True
        case ast.Assign():
            return all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
        case _:
            return False


def _statement(statement: ast.stmt, name: str | None) -> Iterator[Edit]:
    """The changes inside a statement, those of the statements in it included."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal() | ast.Pass():
            return
        case ast.Expr(value=ast.Constant() | ast.Call(func=ast.Name(id="assert_never"))):
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from _function(statement)
            return
        case ast.ClassDef():
            if not any("Protocol" in ast.unparse(base) for base in statement.bases):
                yield from _block(statement, "body", statement.name)
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Assign() | ast.AnnAssign() if name is not None:
            name = _defined(statement) or name
            if name in NOT_PROGRAM or _is_type(statement.value):
                return
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield _edit(_Place(statement, name), statement, "value", None, ast.Constant(None))
        case ast.AugAssign(op=op) if type(op) in OPERATORS:
            yield _edit(_Place(statement, name), statement, "op", None, OPERATORS[type(op)]())
        case _:
            pass
    place = _Place(statement, name, isinstance(statement, ast.Raise))
    yield from _children(statement, place)


def _children(node: ast.AST, place: _Place) -> Iterator[Edit]:
    """The changes of all parts of a node, in order."""
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "type_comment", "ctx"}:
            continue
        if isinstance(value, ast.expr):
            yield from _expression(node, field, None, value, place)
        elif isinstance(value, ast.AST):
            yield from _children(value, place)
        elif isinstance(value, list) and value:
            parts = cast("list[object]", value)
            if isinstance(parts[0], ast.stmt):
                yield from _block(node, field, place.name)
                continue
            for index, part in enumerate(parts):
                if isinstance(part, ast.expr):
                    yield from _expression(node, field, index, part, place)
                elif isinstance(part, ast.AST):
                    yield from _parts(part, place)


def _parts(part: ast.AST, place: _Place) -> Iterator[Edit]:
    """The changes of what is neither statement nor expression: handlers, cases, loops of comprehensions."""
    if isinstance(part, ast.comprehension):
        for index in range(len(part.ifs)):
            yield _edit(place, part, "ifs", None, part.ifs[:index] + part.ifs[index + 1 :], at=part.ifs[index])
    if isinstance(part, ast.match_case) and part.guard is not None:
        yield _edit(place, part, "guard", None, None, at=part.guard)
    yield from _children(part, place)


def _function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Edit]:
    if any("overload" in ast.unparse(decorator) for decorator in function.decorator_list):
        return
    # a default is read when the function is called: its lines are those of the body
    body = function.body[0]
    for edit in _children(function.args, _Place(function, None)):
        yield edit._replace(first=body.lineno, last=function.end_lineno or body.lineno)
    yield from _block(function, "body", None)


def _expression(owner: ast.AST, field: str, index: int | None, node: ast.expr, place: _Place) -> Iterator[Edit]:
    """The changes of an expression and of all in it."""

    def instead(new: ast.AST) -> Edit:
        return _edit(place, owner, field, index, new, at=node)

    match node:
        case ast.Constant():
            if not (place.in_raise and isinstance(node.value, str)):
                yield from map(instead, _constants(node))
            return
        case ast.JoinedStr() if place.in_raise:
            return
        case ast.Subscript(value=ast.Name(id=name)) if name in FORMS_OF_TYPES:
            return
        case ast.Call(func=ast.Name(id=name)) if name in NAMED_BY_TEXT:
            return
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield instead(node.operand)
        case ast.BoolOp():
            for number in range(len(node.values)):
                rest = node.values[:number] + node.values[number + 1 :]
                yield instead(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
        case ast.Call(func=ast.Name(id="sorted")):
            yield instead(ast.Call(ast.Name("list", ast.Load()), node.args[:1], []))
        case ast.Call(func=ast.Name(id="reversed")):
            yield instead(node.args[0])
        case _:
            pass
    yield from _inside(node, place)
    if _is_condition(owner, field) and not isinstance(node, ast.Compare | ast.UnaryOp):
        yield instead(ast.UnaryOp(ast.Not(), node))
    yield from _children(node, place)


def _inside(node: ast.expr, place: _Place) -> Iterator[Edit]:
    """The changes of an expression's own fields."""
    match node:
        case ast.BinOp() if type(node.op) in OPERATORS:
            yield _edit(place, node, "op", None, OPERATORS[type(node.op)](), at=node)
        case ast.BoolOp():
            yield _edit(place, node, "op", None, ast.Or() if isinstance(node.op, ast.And) else ast.And(), at=node)
        case ast.Compare():
            for number, operator in enumerate(node.ops):
                for other in ORDERINGS[type(operator)]:
                    yield _edit(place, node, "ops", number, other(), at=node)
        case ast.Slice():
            for bound in ("lower", "upper", "step"):
                if getattr(node, bound) is not None:
                    yield _edit(place, node, bound, None, None, at=node)
        case ast.Yield(value=value) if value is not None and not _is_none(value):
            yield _edit(place, node, "value", None, ast.Constant(None), at=node)
        case ast.Call():
            yield from _call(node, place)
        case _:
            pass


def _call(node: ast.Call, place: _Place) -> Iterator[Edit]:
    for index, keyword in enumerate(node.keywords):
        if keyword.arg is not None and keyword.arg not in SAFEGUARDS:
            yield _edit(
                place, node, "keywords", None, node.keywords[:index] + node.keywords[index + 1 :], at=keyword.value
            )
    match node.func:
        case ast.Name(id=name) if name in FUNCTIONS:
            yield _edit(place, node, "func", None, ast.Name(FUNCTIONS[name], ast.Load()), at=node)
        case ast.Attribute(attr=name) if name in METHODS:
            yield _edit(place, node.func, "attr", None, METHODS[name], at=node)
        case _:
            pass


def _constants(node: ast.Constant) -> Sequence[ast.Constant]:
    match node.value:
        case bool(value):
            return (ast.Constant(not value),)
        case int(value):
            return ast.Constant(value + 1), ast.Constant(value - 1)
        case float(value):
            return (ast.Constant(value + 1.0),)
        case str(value):
            return (ast.Constant(value + "_x"),)
        case bytes(value):
            return (ast.Constant(value + b"_x"),)
        case _:
            return ()


def _is_condition(owner: ast.AST, field: str) -> bool:
    return field == "test" and isinstance(owner, ast.If | ast.While | ast.IfExp)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_type(value: ast.expr | None) -> bool:
    """Whether a value outside functions is a type: ``A | B``, ``Literal[...]``."""
    match value:
        case ast.BinOp(op=ast.BitOr()):
            return not any(isinstance(node, ast.Call | ast.Dict) for node in ast.walk(value))
        case ast.Subscript(value=ast.Name(id=name)):
            return name in FORMS_OF_TYPES
        case _:
            return False


def _defined(statement: ast.Assign | ast.AnnAssign) -> str | None:
    target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
    return target.id if isinstance(target, ast.Name) else None


def _edit(
    place: _Place, owner: ast.AST, field: str, index: int | None, new: object, at: ast.expr | None = None
) -> Edit:
    where = place.statement if at is None else at
    if isinstance(new, ast.expr | ast.stmt):
        # parts that stay keep their lines; only what is new gets one
        if not hasattr(new, "lineno"):
            ast.copy_location(new, where)
        ast.fix_missing_locations(new)
    return Edit(place.statement, owner, field, index, new, where.lineno, where.end_lineno or where.lineno, place.name)
