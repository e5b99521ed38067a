"""The body of a request -> vectors as the model takes them, their labels, and pictures to show of them."""

import asyncio
import base64
import io
import math
import unicodedata
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from fastapi import HTTPException, Request
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StrictBool, StrictInt, StrictStr, ValidationError
from starlette.datastructures import UploadFile

from mtn import images
from mtn.classifier import Label
from mtn.errors import InputError
from mtn.serve.engine import MOST_ROWS, Engine, Served
from mtn.serve.journal import Material

MOST_ITEMS = 64
"""Pictures or sentences of a request."""
MOST_PIXELS = 50_000_000
"""Of all pictures of a request: more than cameras make."""
MOST_LETTERS = 2000
"""Of a sentence."""
LONGEST_LABEL = 200
EXACT = 2**53
"""Whole numbers beyond this are not exact everywhere."""

JSON, RAW, PARTS = "application/json", "application/octet-stream", "multipart/form-data"
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]  # true is no number
Text = Annotated[str, Field(min_length=1, max_length=MOST_LETTERS)]


class Question(BaseModel):
    """Vectors; or sentences, of a model that reads text."""

    model_config = ConfigDict(extra="forbid")
    vectors: list[list[Number]] | None = Field(None, min_length=1, max_length=MOST_ROWS)
    texts: list[Text] | None = Field(None, min_length=1, max_length=MOST_ITEMS)


class Lesson(Question):
    """The same, with a label each."""

    labels: list[StrictStr | StrictBool | StrictInt | FiniteFloat] = Field(min_length=1, max_length=MOST_ROWS)


class Given(NamedTuple):
    """What came: vectors, files of pictures, or sentences, and labels as far as they were with them."""

    vectors: np.ndarray | None = None
    files: Sequence[bytes] = ()
    texts: Sequence[str] = ()
    labels: Sequence[Any] | None = None


def encode(served: Served, items: Sequence[Image.Image | str]) -> tuple[np.ndarray, np.ndarray | None]:
    """Pictures or sentences -> N,D vectors, and N pictures to show of them if they can be seen."""
    found = served.classifier.reader().given(list(items))
    assert found is not None
    return np.asarray(found.x, np.float32), found.thumbnails


async def question(request: Request, engine: Engine, most: int = MOST_ROWS) -> np.ndarray:
    """N,D to ask."""
    _, vectors, _ = await _read(request, engine, Question)
    if len(vectors) > most:
        raise InputError(f"at most {most} at once, got {len(vectors)}")
    return vectors


async def material(request: Request, engine: Engine, label: str | None) -> Material:
    """What to teach: `label` is that of all samples where the body has none."""
    labels, vectors, thumbnails = await _read(request, engine, Lesson)
    if labels is None and label is None:
        raise InputError("a label is needed: ?label=NAME, or `labels` in JSON")
    labels = [label] * len(vectors) if labels is None else labels
    if len(labels) != len(vectors):
        raise InputError(f"labels must be one a sample, {len(vectors)}, got {len(labels)}")
    return Material(vectors, [_label(engine.served, one) for one in labels], thumbnails)


async def _read(
    request: Request, engine: Engine, model: type[Question]
) -> tuple[Sequence[Any] | None, np.ndarray, np.ndarray | None]:
    """Labels, vectors, thumbnails."""
    given = await _given(request, engine.served, model)
    if given.vectors is not None:
        return given.labels, _checked(given.vectors, engine.served.width), None
    async with engine.unpacking:
        items: Sequence[Image.Image | str] = given.texts
        if not items:
            items = await asyncio.to_thread(_pictures, given.files)
        loop = asyncio.get_running_loop()
        return given.labels, *await loop.run_in_executor(engine.thread, encode, engine.served, items)


async def _given(request: Request, served: Served, model: type[Question]) -> Given:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == JSON:
        return await asyncio.to_thread(_from_json, await request.body(), model, served.takes)
    if kind == RAW:
        return Given(_from_raw(await request.body(), served.width))
    if served.takes == "images" and (kind == PARTS or kind.startswith("image/")):
        return Given(files=await _files(request) if kind == PARTS else [await request.body()])
    raise HTTPException(415, f"this model takes {', '.join(kinds(served))}")


def kinds(served: Served) -> list[str]:
    """Content types that a model takes."""
    return [JSON, RAW] + (["image/*", PARTS] if served.takes == "images" else [])


def _from_json(body: bytes, model: type[Question], wanted: str) -> Given:
    try:
        found = model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise InputError(f"{place}: {first['msg']}") from None
    if (found.vectors is None) == (found.texts is None):
        raise InputError("the body must have either `vectors` or `texts`")
    if found.texts is not None and wanted != "texts":
        raise InputError(f"this model takes {wanted}, not texts")
    labels = found.labels if isinstance(found, Lesson) else None
    if found.texts is not None:
        return Given(texts=found.texts, labels=labels)
    width = {len(row) for row in found.vectors or ()}
    if len(width) > 1:
        raise InputError(f"vectors must all have the same length, got {min(width)} and {max(width)}")
    return Given(np.array(found.vectors, np.float64), labels=labels)


def _from_raw(body: bytes, width: int) -> np.ndarray:
    if not body or len(body) % (4 * width):
        raise InputError(f"the body must be vectors of {width} float32 each, {4 * width} bytes, got {len(body)} bytes")
    if len(body) > 4 * width * MOST_ROWS:
        raise InputError(f"at most {MOST_ROWS} vectors at once, got {len(body) // (4 * width)}")
    return np.frombuffer(body, "<f4").reshape(-1, width)


async def _files(request: Request) -> list[bytes]:
    """What the parts hold; their names are not looked at."""
    async with request.form(max_files=MOST_ITEMS, max_fields=1) as form:
        return [await part.read() for _, part in form.multi_items() if isinstance(part, UploadFile)]


def _pictures(files: Sequence[bytes]) -> list[Image.Image]:
    if not files:
        raise InputError("the body holds no picture")
    pictures, room = [], MOST_PIXELS
    for number, content in enumerate(files, 1):
        try:
            pictures.append(images.decode(content, room))
        except images.Unreadable as error:
            raise InputError(f"picture {number}: {error}") from None
        room -= pictures[-1].width * pictures[-1].height
    return pictures


def _checked(given: np.ndarray, width: int) -> np.ndarray:
    """Of the model's width, finite as float32."""
    if given.shape[1] != width:
        raise InputError(f"vectors must have {width} numbers, as the model's have, got {given.shape[1]}")
    with np.errstate(over="ignore"):
        vectors = given.astype(np.float32)
    if not np.isfinite(vectors).all():
        raise InputError("vectors must be finite: no NaN, nothing beyond float32")
    return vectors


def _label(served: Served, given: object) -> Label:
    """As typed, of the type of the model's labels. What could be a step in a path or a control sequence is refused."""
    text = str(given).strip()
    strange = text in (".", "..") or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)
    if strange or not 1 <= len(text) <= LONGEST_LABEL:
        raise InputError(f"a label must be 1 to {LONGEST_LABEL} visible characters, got {text[:20]!r}")
    label = served.label(text)
    if not isinstance(label, str) and (not math.isfinite(label) or abs(label) > EXACT):
        raise InputError(f"a label must be a number from -2^53 to 2^53, got {text[:20]!r}")
    return label


def picture(image: np.ndarray | None) -> str | None:
    """A small PNG that a page shows without asking for it."""
    if image is None:
        return None
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
