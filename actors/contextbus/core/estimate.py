"""The estimator of a step: whatever is counted, it counts, from messages to framing (D.M.1).

Weights are exact integers in eighteenths of a token, so that sums of parts are exact; tokens appear only where a part
is rounded up (D.M.13).  A provider may count and bill otherwise (D.M.9).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, assert_never

import msgspec

from contextbus.core.character_classes import CLASSES_VERSION, weigh_characters, weigh_many
from contextbus.core.media import DOCUMENT_TOKENS, IMAGE_TOKENS, may_hold_data_uris, strip_data_uris, strip_media_fields
from contextbus_protocol import codec
from contextbus_protocol.chat import (
    AnyPart,
    ApprovalRequest,
    ApprovalResponse,
    ChatMessage,
    Document,
    Image,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)
from contextbus_protocol.digests import clean_text, digest_text
from contextbus_protocol.errors import (
    InvalidRequestError,
    NotFoundError,
    RangeError,
    UnsupportedVersionError,
)
from contextbus_protocol.package import CountFact
from contextbus_protocol.values import MAX_SAFE_INTEGER, EstimatorSpec

EIGHTEENTHS: Final = 18
FACTOR_ONE: Final = 10_000
SMALLEST_FACTOR: Final = 5_000
LARGEST_FACTOR: Final = 20_000
MESSAGE_EIGHTEENTHS: Final = 72
TOOL_PART_TOKENS: Final = 10
ANTHROPIC_TOOL_FRAMING_TOKENS: Final = 346
"""What Anthropic adds to a request with tools, in tokens (D.M.8)."""

Tokenizer = Callable[[str], float]
"""Counts the tokens of a text; a fraction is rounded up."""

_CHARACTER_WEIGHT: Final = 5
_NO_TOKENIZERS: Final[Mapping[str, Tokenizer]] = MappingProxyType({})


def _weigh_flat(text: str) -> int:
    return _CHARACTER_WEIGHT * (len(text) if text.isascii() else len(clean_text(text)))


_HEURISTICS: Final[Mapping[str, tuple[int, Callable[[str], int]]]] = MappingProxyType(
    {"characters": (1, _weigh_flat), "classes": (CLASSES_VERSION, weigh_characters)}
)


class Estimator(ABC):
    """Counts for one step; ``spec`` says what the counts rest on (D.D.11)."""

    def __init__(self, spec: EstimatorSpec) -> None:
        _check_factor(spec.factor)
        self.spec = spec
        self._scale = EIGHTEENTHS * FACTOR_ONE

    @abstractmethod
    def _weigh(self, text: str) -> int:
        """Eighteenths of a token of a text that is not empty."""

    @property
    def counts(self) -> tuple[CountFact, ...]:
        """What a tokenizer counted, by digest of the text, in order of the digests; none for heuristics (D.M.14)."""
        return ()

    def text(self, text: str) -> int:
        """Weigh a text, in eighteenths of a token.

        A lone surrogate counts as U+FFFD (D.M.7); a data URI costs what its media costs (D.M.4).  Under a heuristic
        the weight of a concatenation is the sum of the weights, unless a data URI is cut in two.
        """
        return self._weigh(text) if text else 0

    def texts(self, texts: Sequence[str]) -> list[int]:
        """Weigh many texts, each as ``text`` does."""
        return [self.text(text) for text in texts]

    def message(self, message: ChatMessage) -> int:
        """Weigh a message, in eighteenths of a token, with the 72 that every message costs (D.M.4)."""
        weight = MESSAGE_EIGHTEENTHS
        for part in message.content:
            weight += self.text(part.text) if type(part) is Text else self._part(part)
        return weight

    def tokens(self, eighteenths: int) -> int:
        """Tokens of a weight: rounded up, after the factor that calibration found."""
        return -(-eighteenths * self.spec.factor // self._scale)

    def count(self, text: str) -> int:
        """Tokens of one text, rounded up by itself (D.M.13)."""
        return self.tokens(self.text(text))

    def estimate(self, messages: Sequence[ChatMessage]) -> int:
        """Tokens of messages, rounded up once for all; no message is 0 (D.M.4)."""
        return self.tokens(sum(map(self.message, messages)))

    def _part(self, part: AnyPart) -> int:
        match part:
            case Text() | Reasoning():
                weight = self.text(part.text)
            case Image():
                weight = IMAGE_TOKENS * EIGHTEENTHS
            case Document():
                weight = DOCUMENT_TOKENS * EIGHTEENTHS if part.text is None else self.text(part.text)
                weight += self.text(part.title or "")
            case ToolCall():
                weight = self._json(_call_json(part)) + TOOL_PART_TOKENS * EIGHTEENTHS
            case ToolResult():
                weight = TOOL_PART_TOKENS * EIGHTEENTHS
                for item in part.content:
                    weight += self._json(item.text) if isinstance(item, Text) else self._part(item)
            case Unknown():
                weight = self._json(_compact(part.data))
            case ApprovalRequest() | ApprovalResponse():
                weight = self.text(codec.encode_json(part).decode())
            case _:
                assert_never(part)
        return weight

    def _json(self, text: str) -> int:
        """Weigh what may be JSON: base64 beside a media type costs what its media costs."""
        rest, tokens = strip_media_fields(text)
        return self.text(rest) + tokens * EIGHTEENTHS


class HeuristicEstimator(Estimator):
    """Weighs characters, either all alike or by class (D.M.2)."""

    def __init__(self, spec: EstimatorSpec) -> None:
        super().__init__(spec)
        if spec.name not in _HEURISTICS:
            at_hand = ", ".join(sorted(_HEURISTICS))
            raise InvalidRequestError(f"no heuristic {spec.name!r}; at hand: {at_hand}")
        version, self._weight_of = _HEURISTICS[spec.name]
        if spec.version != version:
            raise UnsupportedVersionError(f"heuristic {spec.name!r} has version {version}, not {spec.version}")

    def _weigh(self, text: str) -> int:
        rest, tokens = strip_data_uris(text)
        return self._weight_of(rest) + tokens * EIGHTEENTHS

    def texts(self, texts: Sequence[str]) -> list[int]:
        """Weigh many texts, each as ``text`` does; without a data URI in them together."""
        if self._weight_of is not weigh_characters or may_hold_data_uris("".join(texts)):
            return super().texts(texts)
        return weigh_many(texts)


class TokenizerEstimator(Estimator):
    """Counts with a tokenizer and remembers each count as a fact (D.M.14); make one for each step.

    A tokenizer that raises, or returns what is no count, gives way to the heuristic ``classes`` for that text (D.M.6).
    """

    def __init__(self, spec: EstimatorSpec, tokenizer: Tokenizer) -> None:
        super().__init__(spec)
        self._tokenizer = tokenizer
        self._counted: dict[str, int] = {}

    @property
    def counts(self) -> tuple[CountFact, ...]:
        """What was counted so far, in order of the digests."""
        return tuple(CountFact(digest, weight) for digest, weight in sorted(self._counted.items()))

    def _weigh(self, text: str) -> int:
        digest = digest_text(text)
        weight = self._counted.get(digest)
        if weight is None:
            weight = self._counted[digest] = self._count(text)
        return weight

    def _count(self, text: str) -> int:
        rest, media = strip_data_uris(clean_text(text))
        return _ask_tokenizer(self._tokenizer, rest) + media * EIGHTEENTHS


class RecordedEstimator(Estimator):
    """Reads the counts that a step recorded, so that a replay needs no vocabulary (D.M.14)."""

    def __init__(self, spec: EstimatorSpec, counts: Iterable[CountFact]) -> None:
        super().__init__(spec)
        self._recorded = {fact.digest: fact.eighteenths for fact in counts}
        self._read: dict[str, int] = {}

    @property
    def counts(self) -> tuple[CountFact, ...]:
        """The recorded counts that were read so far, in order of the digests: what a tokenizer would have counted."""
        return tuple(CountFact(digest, weight) for digest, weight in sorted(self._read.items()))

    def _weigh(self, text: str) -> int:
        digest = digest_text(text)
        try:
            weight = self._read[digest] = self._recorded[digest]
        except KeyError:
            raise NotFoundError(f"no count of text {digest} is recorded; the step was not decided on it") from None
        return weight


def make_estimator(
    spec: EstimatorSpec | None = None, tokenizers: Mapping[str, Tokenizer] = _NO_TOKENIZERS
) -> Estimator:
    """Make the estimator that a step asks for (D.M.2, D.M.3).

    Args:
        spec: which counter; by default the heuristic ``classes``.
        tokenizers: the tokenizers at hand, by name; each returns the tokens of a text.

    Raises:
        InvalidRequestError: the name is of no heuristic and of no tokenizer at hand.
        UnsupportedVersionError: the heuristic has another version here.
        RangeError: the factor is not within 5000..20000 ten-thousandths.
    """
    spec = EstimatorSpec() if spec is None else spec
    if spec.kind == "heuristic":
        return HeuristicEstimator(spec)
    if spec.name not in tokenizers:
        at_hand = ", ".join(sorted(tokenizers)) or "none"
        remedy = f"open the bus with tokenizers=[{spec.name!r}], or see `contextbus doctor`"
        raise InvalidRequestError(f"no tokenizer {spec.name!r}; at hand: {at_hand}; {remedy}")
    return TokenizerEstimator(spec, tokenizers[spec.name])


def recorded_estimator(spec: EstimatorSpec, counts: Iterable[CountFact]) -> Estimator:
    """Make the estimator of a replay: recorded counts in place of a tokenizer, heuristics as they are (D.M.14).

    Raises:
        InvalidRequestError: the heuristic is unknown.  A text whose count is not recorded raises NotFoundError later.
    """
    return HeuristicEstimator(spec) if spec.kind == "heuristic" else RecordedEstimator(spec, counts)


def estimate_overhead(
    tools: Sequence[object],
    output_schema: object,
    provider: str,
    framing_tokens: int | None = None,
    estimator: Estimator | None = None,
) -> int:
    """Tokens of a request beside its messages: tool definitions, output schema and framing (D.M.15).

    Args:
        tools: the tool definitions, as JSON values.
        output_schema: the schema as a JSON value, or None.
        provider: decides the framing: 346 tokens for ``anthropic`` with tools, else none (D.M.8).
        framing_tokens: takes the place of that framing, 0 included.
        estimator: by default the heuristic ``classes``.

    Raises:
        InvalidTypeError: a definition has no JSON form.
        RangeError: ``framing_tokens`` is negative or no safe integer.
    """
    counter = make_estimator() if estimator is None else estimator
    if framing_tokens is None:
        framing_tokens = ANTHROPIC_TOOL_FRAMING_TOKENS if provider == "anthropic" and tools else 0
    elif type(framing_tokens) is not int or not 0 <= framing_tokens <= MAX_SAFE_INTEGER:
        raise RangeError("framing_tokens is a non-negative integer")
    tool_tokens = counter.count(codec.encode_json(tools).decode()) if tools else 0
    schema_tokens = counter.count(codec.encode_json(output_schema).decode()) if output_schema is not None else 0
    return tool_tokens + schema_tokens + framing_tokens


def _check_factor(factor: int) -> None:
    if not SMALLEST_FACTOR <= factor <= LARGEST_FACTOR:
        raise RangeError(f"factor is within {SMALLEST_FACTOR}..{LARGEST_FACTOR} ten-thousandths")


def _ask_tokenizer(tokenizer: Tokenizer, text: str) -> int:
    """Eighteenths of a text by a tokenizer of anybody's; the heuristic's where it fails (D.M.6)."""
    if not text:
        return 0
    try:
        tokens: object = tokenizer(text)
    except Exception:  # whatever a stranger's function raises must not stop a compile
        return weigh_characters(text)
    if isinstance(tokens, float) and math.isfinite(tokens):
        tokens = math.ceil(tokens)
    if type(tokens) is int and 0 <= tokens <= MAX_SAFE_INTEGER:
        return tokens * EIGHTEENTHS
    return weigh_characters(text)


def _call_json(call: ToolCall) -> str:
    """Compact JSON of a call's name and input."""
    name = codec.encode_json(clean_text(call.name)).decode()
    return f'{{"name":{name},"input":{_compact(call.arguments)}}}'


def _compact(text: str) -> str:
    """JSON without the space between its tokens; what is no JSON stays as it is."""
    try:
        return msgspec.json.format(text, indent=-1)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return text
