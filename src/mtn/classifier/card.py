"""What a person reads of a model: the card in its folder, and the one that goes with it to the hub."""

from mtn.classifier.state import ESTIMATES, ClassifierState
from mtn.encoders.base import PLURAL
from mtn.errors import DISTRIBUTION
from mtn.runtime.device import versions
from mtn.runtime.text import printable

BEGIN, END = "<!-- mtn: what stands between these two lines is written anew by each push -->", "<!-- /mtn -->"
COLUMNS = ("samples", "new_classes", "classes", "accuracy_before", *ESTIMATES)
"""Of an entry of the history."""
TAGS = ["mtn", "class-incremental-learning", "continual-learning"]
TASKS = {"image": "image-classification", "text": "text-classification"}
"""What a model takes -> the hub's name of what it does."""


def model_card(state: ClassifierState, load: str = 'MTNClassifier.load("this folder")') -> str:
    """README.md of a model's folder; `load` is the Python that opens it."""
    classes = "".join(f"| {_cell(label)} | {count} |\n" for label, count in state.exemplar_counts())
    lessons = "".join(
        f"| {number} | " + " | ".join(_cell(entry.get(column)) for column in COLUMNS) + " |\n"
        for number, entry in enumerate(state.history, 1)
    )
    return f"""# A classifier of {len(state.columns)} classes

Method `{state.learner.config.method.name}`, {_input(state)}.
It learned in {len(state.stops)} calls from {state.arrived} samples, and remembers {len(state.memory)} exemplars,
{len(state.thumbnails)} of them with a picture, {len(state.texts)} with their text. Written by mtn {versions()["mtn"]}
(`pip install {DISTRIBUTION}`).

```python
from mtn import MTNClassifier

classifier = {load}
classifier.predict(X)
classifier.explain(X)  # the remembered examples that each answer rests on
```

Accuracy before a lesson is on its samples of classes that were known then. Estimated accuracy is on exemplars that were
not trained on; `-` where there are none.

| lesson | samples | new classes | classes | accuracy before | estimated accuracy | of new classes |
|---:|---:|---:|---:|---:|---:|---:|
{lessons}
| class | exemplars |
|---|---:|
{classes}"""


def hub_metadata(state: ClassifierState) -> dict[str, object]:
    """What the hub searches by. The licence is for the model's owner to say."""
    task = TASKS.get(state.source.get("kind", ""), "tabular-classification")
    return {"library_name": "mtn", "tags": TAGS, "pipeline_tag": task}


def merged(old: str, card: str) -> str:
    """The text of an old card with the new one in the place of what was written by an earlier push, or at its end."""
    new = f"{BEGIN}\n{card.rstrip()}\n{END}"
    before, begun, rest = old.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if begun and ended:
        return before + new + after
    return f"{old.rstrip()}\n\n{new}\n".lstrip()


def _input(state: ClassifierState) -> str:
    vectors, encoder = f"vectors of {state.feature_count} numbers", state.source.get("encoder")
    if not encoder:
        return f"which takes {vectors}"
    revision = f" at `{_cell(encoder['revision'])}`" if encoder.get("revision") else ""
    made = f"of which the encoder `{_cell(encoder['name'])}`{revision} makes {vectors}"
    return f"which takes {PLURAL[state.source['kind']]}, {made}"


def _cell(value: object) -> str:
    """A value in a table: a share in per cent, text on one line."""
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if isinstance(value, float) else printable(value).replace("|", "\\|")
