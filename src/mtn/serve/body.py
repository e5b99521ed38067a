"""The body of a request -> vectors as the model takes them, their labels, and thumbnails."""

import asyncio
import base64
import io
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from fastapi import HTTPException, Request
from PIL import Image
from starlette.datastructures import UploadFile

from mtn import images
from mtn.classifier import Label
from mtn.classifier.labels import check_labels
from mtn.classifier.teaching import kept_text
from mtn.data.inputs import Inputs
from mtn.errors import InputError
from mtn.serve.engine import MAX_ROWS, Engine, InputKind, LoadedModel
from mtn.serve.journal import LabelledSamples, NoStorage
from mtn.serve.json_body import LONGEST_LABEL, MAX_ITEMS, JsonReader, Question, TeachingRequest

PART_BYTES = 2**16
"""Of a body that are parsed at once: other threads wait for it."""
MAX_PIXELS = 50_000_000
"""Of all pictures of a request: more than cameras make."""
MAX_INTEGER = 2**53
"""JSON numbers beyond this are not exact in every language."""

JSON, RAW, PARTS = "application/json", "application/octet-stream", "multipart/form-data"
WORDS: dict[InputKind, str] = {"vectors": "vectors", "images": "pictures", "texts": "sentences"}
"""What a model takes, as it is called in messages."""


class RequestBody(NamedTuple):
    """Vectors, files of pictures, or sentences, and their labels if the body has any."""

    vectors: np.ndarray | None = None
    files: Sequence[bytes] = ()
    texts: Sequence[str] = ()
    labels: Sequence[Any] | None = None


def encode(model: LoadedModel, items: Sequence[Image.Image | str]) -> Inputs:
    """Pictures or sentences -> N,D vectors, with N thumbnails of pictures."""
    inputs = model.classifier.reader().encode_items(list(items))
    assert inputs is not None
    return replace(inputs, x=np.asarray(inputs.x, np.float32))


async def read_queries(request: Request, engine: Engine, most: int = MAX_ROWS) -> Inputs:
    """N,D vectors to answer, with their sentences."""
    _, asked = await _read(request, engine, Question, most)
    if len(asked) > most:
        raise InputError(f"at most {most:,} at once, got {len(asked):,}")
    return asked


async def read_samples(request: Request, engine: Engine, label: str | None) -> LabelledSamples:
    """Samples to learn; `label` is the label of all of them if the body has none."""
    labels, samples = await _read(request, engine, TeachingRequest, MAX_ROWS)
    if labels is None and label is None:
        raise InputError("a label is needed: ?label=NAME, or `labels` beside the samples in JSON")
    labels = [label] * len(samples) if labels is None else labels
    if len(labels) != len(samples):
        raise InputError(f"each sample needs one label: there are {len(samples)} samples and {len(labels)} labels")
    check_labels(list(labels))  # before they are text: 1 and "1" are two
    names = [parse_label(engine.model, label) for label in labels]
    keep = samples.texts is not None and engine.model.classifier.keep_text
    texts = [kept_text(text) for text in samples.texts or ()] if keep else None
    return LabelledSamples(samples.x, names, samples.thumbnails, texts)


async def _read(
    request: Request, engine: Engine, schema: type[Question], most: int
) -> tuple[Sequence[Any] | None, Inputs]:
    """Labels, and what was sent as vectors."""
    body = await _body(request, engine, schema, most)
    if body.vectors is not None:
        return body.labels, Inputs(_checked(body.vectors, engine.model.width))
    async with engine.unpacking:
        items: Sequence[Image.Image | str] = body.texts
        if not items:
            items = await asyncio.to_thread(_pictures, body.files)
        loop = asyncio.get_running_loop()
        return body.labels, await loop.run_in_executor(engine.thread, encode, engine.model, items)


async def _body(request: Request, engine: Engine, schema: type[Question], most: int) -> RequestBody:
    """The body, read by its content type; of vectors at most `most`."""
    kind, model = request.headers.get("content-type", "").partition(";")[0].strip().lower(), engine.model
    if kind == JSON:
        return await _from_json(request, engine, schema, most)
    if kind == RAW:
        return RequestBody(await _from_raw(request, model.width, most))
    if model.takes == "images" and (kind == PARTS or kind.startswith("image/")):
        return RequestBody(files=await _files(request) if kind == PARTS else [await request.body()])
    got = f"{kind[:80]!r}" if kind else "no content type"
    raise HTTPException(415, f"this model takes {WORDS[model.takes]}: {', '.join(content_types(model))}; got {got}")


def content_types(model: LoadedModel) -> list[str]:
    """Content types that a model takes."""
    return [JSON, RAW] + (["image/*", PARTS] if model.takes == "images" else [])


async def _from_json(request: Request, engine: Engine, schema: type[Question], most: int) -> RequestBody:
    """Vectors or sentences, parsed while they come; no thread is held while the service waits for a client."""
    reader, takes = JsonReader(engine.model.width, most), engine.model.takes
    unread = bytearray()
    async for part in request.stream():
        unread += part
        if len(unread) >= PART_BYTES:
            async with engine.parsing:
                await asyncio.to_thread(reader.feed, bytes(unread))
            unread.clear()
    async with engine.parsing:
        return await asyncio.to_thread(_finish, reader, bytes(unread), schema, takes)


def _finish(reader: JsonReader, last: bytes, schema: type[Question], takes: InputKind) -> RequestBody:
    """The body, once its last part has come; `takes` is what the model takes."""
    reader.feed(last)
    fields = reader.finish(schema)
    if (fields.vectors is None) == (fields.texts is None):
        raise InputError("the body must have `vectors` or `texts`, and not both")
    if fields.texts is not None and takes != "texts":
        raise InputError(f"this model takes {WORDS[takes]}, got sentences")
    labels = fields.labels if isinstance(fields, TeachingRequest) else None
    if fields.texts is not None:
        return RequestBody(texts=fields.texts, labels=labels)
    return RequestBody(np.stack(reader.rows), labels=labels)


async def _from_raw(request: Request, width: int, most: int) -> np.ndarray:
    """N,D little-endian float32, row after row."""
    content, limit = bytearray(), 4 * width * most
    async for part in request.stream():
        if len(content) <= limit:  # beyond it, parts are dropped
            content += part
    if len(content) > limit:
        raise InputError(f"at most {most:,} vectors at once, got more")
    if not content or len(content) % (4 * width):
        rule = f"vectors of {width} numbers in float32, {4 * width} bytes each"
        raise InputError(f"the body must be {rule}; {len(content)} bytes are no such vectors")
    return np.frombuffer(content, "<f4").reshape(-1, width)


async def _files(request: Request) -> list[bytes]:
    """The contents of a form's files; their names are ignored."""
    try:
        async with request.form(max_files=MAX_ITEMS, max_fields=1) as form:
            return [await part.read() for _, part in form.multi_items() if isinstance(part, UploadFile)]
    except OSError as error:  # large parts are kept in temporary files
        raise NoStorage(str(error)) from None


def _pictures(files: Sequence[bytes]) -> list[Image.Image]:
    """Decoded, of bounded size in all."""
    if not files:
        raise InputError("there is no picture in the request")
    pictures, room = [], MAX_PIXELS
    for number, content in enumerate(files, 1):
        try:
            pictures.append(images.decode(content, room))
        except images.Unreadable as error:
            raise InputError(f"picture {number} cannot be read: {error}") from None
        room -= pictures[-1].width * pictures[-1].height
    return pictures


def _checked(numbers: np.ndarray, width: int) -> np.ndarray:
    """N,D float32 of the model's width, all finite."""
    if numbers.shape[1] != width:
        raise InputError(f"a vector of this model has {width} numbers, got {numbers.shape[1]}")
    with np.errstate(over="ignore"):
        vectors = numbers.astype(np.float32)
    if not np.isfinite(vectors).all():
        raise InputError("the numbers of vectors must be finite, and fit into float32")
    return vectors


def parse_label(model: LoadedModel, value: object) -> Label:
    """Of the type of the model's labels. What could be a step in a path or a control sequence is refused."""
    text = str(value).strip()
    refused = text in (".", "..") or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)
    if refused or not 1 <= len(text) <= LONGEST_LABEL:
        raise InputError(f"a label must have 1 to {LONGEST_LABEL} visible characters, got {text[:20]!r}")
    label = model.parse_label(text)
    if not isinstance(label, str) and (not math.isfinite(label) or abs(label) > MAX_INTEGER):
        raise InputError(f"a label must be a number from -2^53 to 2^53, got {text[:20]!r}")
    return label


def data_url(image: np.ndarray | None) -> str | None:
    """An image as a PNG within a URL."""
    if image is None:
        return None
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
