"""A body of JSON, part by part -> vectors, and the little that is left of it: nothing is parsed that is too large.

The rows of `vectors` are cut out of the text as they come, measured, and parsed one by one. What remains, the labels
and texts with an empty list for each row, is parsed at the end, and bounded in length, depth and number of values
before that: JSON of a few megabytes can take a hundred times its size once it is parsed.
"""

import json
import re
from typing import Annotated

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StrictBool,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)

from mtn.errors import InputError
from mtn.serve.engine import MAX_ROWS
from mtn.serve.refusals import sentence

MAX_ITEMS = 64
"""Pictures or sentences of a request."""
MAX_LETTERS = 2000
"""Of a sentence."""
LONGEST_LABEL = 200

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]  # true is no number
Text = Annotated[str, Field(min_length=1, max_length=MAX_LETTERS)]


class Question(BaseModel):
    """Vectors; or sentences, of a model that reads text."""

    model_config = ConfigDict(extra="forbid")
    vectors: list[list[Number]] | None = Field(None, min_length=1, max_length=MAX_ROWS)
    texts: list[Text] | None = Field(None, min_length=1, max_length=MAX_ITEMS)


class TeachingRequest(Question):
    """The same, with a label each."""

    model_config = ConfigDict(extra="forbid", title="Lesson")
    labels: list[StrictStr | StrictBool | StrictInt | FiniteFloat] = Field(min_length=1, max_length=MAX_ROWS)


ESCAPED_BYTES = 12
"""Of a letter beyond the first plane: two \\uXXXX."""
MAX_STRING = ESCAPED_BYTES * max(MAX_LETTERS, LONGEST_LABEL) + 2
MAX_REST = ESCAPED_BYTES * max(MAX_ROWS * LONGEST_LABEL, MAX_ITEMS * MAX_LETTERS) + 2**16
"""Bytes without the rows."""
MAX_VALUES = 3 * MAX_ROWS
"""Values without the numbers of rows: a row and a label each, and some for a message that says what is wrong."""
MAX_DEPTH = 3
NUMBER_BYTES = 100
"""Of a number with the spaces around it, on average over a row: twice what any serialiser writes."""

TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{}]', re.DOTALL)
"""A string, as far as it has come, or a bracket."""
SPACES = re.compile(rb"[ \t\r\n]+")
ROW: TypeAdapter[list[float]] = TypeAdapter(list[Number])


class JsonReader:
    """Fed with the parts of a body; `rows` are its vectors, D float32 each."""

    def __init__(self, width: int, max_rows: int = MAX_ROWS) -> None:
        self.width, self.max_rows = width, max_rows
        self.rows: list[np.ndarray] = []
        self._rest = bytearray()  # the body with empty rows
        self._unread = b""  # a string or a row that is not complete
        self._depth = self._values = 0
        self._field: object = None

    def feed(self, part: bytes) -> None:
        """Read the next part; an error as soon as it is too much of anything."""
        text, position = self._unread + part, 0
        self._unread = b""
        while token := TOKEN.search(text, position):
            self._keep_plain(text[position : token.start()])
            end = token.end()
            if token[0] == b"[" and self._depth == MAX_DEPTH - 1 and self._field == "vectors":
                end = text.find(b"]", end) + 1
                complete, limit = end > 0, NUMBER_BYTES * self.width + MAX_STRING
            else:
                complete, limit = not token[0].startswith(b'"') or token[1] == b'"', MAX_STRING
            if (end if complete else len(text)) - token.start() > limit:
                raise InputError("a sentence, a label or a vector is far too long")
            if not complete:
                self._unread = text[token.start() :]
                return
            self._keep(text[token.start() : end])
            position = end
        self._keep_plain(text[position:])

    def finish(self, schema: type[Question]) -> Question:
        """The fields of the body, with an empty list for each row."""
        try:
            fields = schema.model_validate_json(bytes(self._rest + self._unread))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise InputError(sentence(first)) from None
        if len(fields.vectors or ()) != len(self.rows):
            raise InputError("`vectors` must be given once, as one list")
        return fields

    def _keep(self, token: bytes) -> None:
        """A bracket, a complete string, or a complete row."""
        if token in (b"[", b"{"):
            self._depth += 1
            if self._depth >= MAX_DEPTH:
                raise InputError("the body has lists or objects where there must be none: see /docs")
        elif token in (b"]", b"}"):
            self._depth -= 1
        elif token.startswith(b"["):
            self._add_row(token)
            token = b"[]"
        elif self._depth == 1:  # the name of a field, or a value that no list follows
            try:
                self._field = json.loads(token)
            except ValueError:
                raise InputError("the body is not JSON in UTF-8") from None
        self._append(token)

    def _keep_plain(self, text: bytes) -> None:
        """What is between brackets, strings and rows: numbers, commas, colons, spaces."""
        self._values += text.count(b",")
        if self._values > MAX_VALUES:
            raise InputError(f"at most {self.max_rows:,} at once, got far more")
        self._append(SPACES.sub(b" ", text))

    def _append(self, text: bytes) -> None:
        self._rest += text
        if len(self._rest) > MAX_REST:
            raise InputError("the labels or sentences are too long in all")

    def _add_row(self, row: bytes) -> None:
        index = len(self.rows)
        if index == self.max_rows:
            raise InputError(f"at most {self.max_rows:,} vectors at once, got more")
        count = row.count(b",") + 1 if row[1:-1].strip() else 0
        if count != self.width:
            raise InputError(f"a vector of this model has {self.width} numbers, got {count} in vector {index + 1}")
        try:
            numbers = np.array(ROW.validate_json(row), np.float64)
        except ValidationError:
            raise InputError(f"vector {index + 1} must be a list of finite numbers") from None
        with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite, and is refused with all rows
            self.rows.append(numbers.astype(np.float32))
