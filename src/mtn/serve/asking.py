"""The routes that answer questions."""

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response

from mtn.classifier import ClassifierState
from mtn.serve import body, remembered, rights
from mtn.serve.answers import Example, Examples, Guesses, Near, Reason, Reasons
from mtn.serve.engine import Answer, Explanation
from mtn.serve.rights import Serving, problems

MAX_EXPLAINED = 32

readers = rights.readers()


@readers.post("/predict", response_model=Guesses, responses=problems(413, 415, 503))
async def predict(request: Request, engine: Serving) -> Response:
    """The likeliest classes of each vector, picture or sentence."""
    answers = await engine.answer((await body.read_queries(request, engine)).x)
    # written here: models of pydantic would check what is known to be right, and this route is the busiest
    guesses = {"answers": [_guess(answer) for answer in answers]}
    return Response(json.dumps(guesses, ensure_ascii=False, allow_nan=False), media_type=body.JSON)


def _guess(answer: Answer) -> dict[str, Any]:
    """The fields of `Guess`."""
    top = [{"label": label, "probability": share} for label, share in answer.top]
    return {**top[0], "unknown": answer.unknown, "novelty": _finite(answer.novelty), "top": top}


@readers.post("/explain", responses=problems(413, 415, 503))
async def explain(request: Request, engine: Serving) -> Reasons:
    """What each answer rests on: the remembered examples nearest to it."""
    asked = await body.read_queries(request, engine, MAX_EXPLAINED)
    answers = await engine.explain(asked.x)
    texts: Sequence[str | None] = asked.texts or [None] * len(answers)
    return Reasons(answers=await asyncio.to_thread(lambda: list(map(_reason, answers, texts))))


def _reason(answer: Explanation, text: str | None) -> Reason:
    facts = vars(answer.evidence)
    near = {
        name: [Near(**vars(one), picture=body.data_url(answer.pictures.get(one.id))) for one in facts[name]]
        for name in ("neighbours", "own")
    }
    label, novelty = facts["prediction"], _finite(facts["novelty"])
    return Reason(**facts | near | {"label": label, "novelty": novelty, "unknown": answer.unknown, "text": text})


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


@readers.get("/examples")
async def examples(engine: Serving) -> Examples:
    """A few pictures or sentences that the model remembers, to try."""
    return Examples(examples=await asyncio.to_thread(_examples, engine.model.state))


def _examples(state: ClassifierState | None) -> list[Example]:
    found = [] if state is None else remembered.to_try(state)
    return [Example(label=one.label, picture=body.data_url(one.picture), text=one.text) for one in found]
