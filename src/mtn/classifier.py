"""The engine as a scikit-learn classifier that is taught class after class, none of them announced."""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from mtn import calibration, config, lesson, milvus, saved
from mtn.errors import InputError, closest
from mtn.evidence import Evidence, Neighbour
from mtn.images import are_pixels
from mtn.inputs import Inputs, Named, Reader
from mtn.learn import Learner
from mtn.neighbours import Retrieval, nearest
from mtn.progress import Progress, bar, silent
from mtn.samples import Samples
from mtn.stream import Task

Label = str | int | float | bool
Id = str | int

SEARCHED, SCORED = 4, 16
"""Queries are looked up and scored in multiples of so many: matrix products of fewer rows round differently, and an
answer must not depend on what else is asked."""

SCORES = 2**26
"""That are computed at once: a quarter of a gigabyte."""

HELD_OUT, FEWEST = 1000, 100
"""Samples that calibration and the accuracy before learning look at, at the most: a call's cost stays bounded. Beyond
16 000 classes they are fewer, but no fewer than the second number."""

UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
"""What is usual before any sample has shown it."""

PLACE = ("memory.store", "memory.uri")
KINDS = {"U": "str", "i": "int", "u": "int", "b": "bool", "f": "float"}


@dataclass(frozen=True)
class Exemplar:
    """A remembered sample: its id, its label, its row in the memory."""

    id: Id
    label: Label
    position: int


class MTNClassifier(ClassifierMixin, BaseEstimator):
    """A classifier that keeps learning new classes, and shows what each answer rests on.

    X are feature vectors. With an encoder they may be images (paths, PIL images, uint8 arrays) or sentences, and in
    any case the path of what the commands take: a folder, a table, a store.

    Parameters
    ----------
    method : str
        A name of the methods table, or your own as package.module:Class.
    memory : int
        Exemplars remembered over all classes.
    k : int
        Neighbours looked up for a query.
    false_alarms : float
        Share of known samples that `predict(X, unknown=...)` may call unknown.
    random_state : int, RandomState or None
    device : "auto", "cpu", "cuda" or "mps"
    progress : bool or function
        Show on the terminal how far learning is, or call the function with what is done, how much of it, of how much.
    settings : dict or None
        Any other key of a recipe, dotted: {"train.min_steps": 100}.
    encoder : str, callable, Encoder or None
        What makes vectors of images or sentences: a name, a path, or a function (docs/encoders.md).

    Attributes
    ----------
    classes_ : sorted labels of the classes known now; columns of `predict_proba` follow it.
    memory_ : what is remembered, a list of `Exemplar`.
    history_ : of each call of fit and partial_fit: samples, new classes, classes, and the accuracy on its samples of
        known classes (1 000 of them at the most) before they were learned.
    thumbnails_ : images of exemplars by id, for `mtn.evidence.plot`.
    source_ : how the vectors were made, {"encoder": its identity, "kind": ...} or {"columns": [...]}; empty: unknown.
    """

    def __init__(
        self,
        method: str = "practical",
        memory: int = 20000,
        k: int = 10,
        false_alarms: float = 0.05,
        random_state: Any = 0,
        device: str = "auto",
        progress: bool | Progress = False,
        settings: Mapping[str, Any] | None = None,
        encoder: Named | None = None,
    ) -> None:
        self.method = method
        self.memory = memory
        self.k = k
        self.false_alarms = false_alarms
        self.random_state = random_state
        self.device = device
        self.progress = progress
        self.settings = settings
        self.encoder = encoder

    # ---- learning

    def fit(
        self, X: Any, y: Any = None, *, ids: Sequence[Id] | None = None, thumbnails: np.ndarray | None = None
    ) -> "MTNClassifier":
        """Learn anew, from these samples alone."""
        return self._learn(X, y, ids, thumbnails, anew=True)

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        *,
        ids: Sequence[Id] | None = None,
        thumbnails: np.ndarray | None = None,
    ) -> "MTNClassifier":
        """Learn more: new classes, any number of them, and more samples of known ones.

        `classes` is not needed: it only checks y. `ids` name the samples in `explain` and `memory_`, in place of
        running numbers. `thumbnails`, N,H,W or N,H,W,3 of uint8, are kept for the samples that are remembered. Without
        y, X has labels of its own: it is the path of a folder, a table, a store.
        """
        if classes is not None and not np.isin(y, classes).all():
            unknown = np.setdiff1d(y, classes)[0]
            raise InputError(f"y must be of the labels in `classes`, got {unknown!r}")
        return self._learn(X, y, ids, thumbnails, anew=not self.__sklearn_is_fitted__())

    def _learn(self, X: Any, y: Any, ids: Any, thumbnails: Any, *, anew: bool) -> "MTNClassifier":
        """On a copy that takes this one's place in the end: an error or an interrupt leaves everything as it was."""
        student, found = copy.copy(self), self._read(X, labelled=True, anew=anew)
        if y is None and found.labels is not None:
            y = found.labels if anew else [self._typed(label) for label in found.labels.tolist()]
        X, y = validate_data(student, found.x, y, reset=anew, dtype=[np.float64, np.float32])
        names, kind = _labels(y)
        if not anew and kind != self._kind:
            raise InputError(f"y must be of the same type as the labels before ({self._kind}), got {kind}")
        with torch.random.fork_rng(devices=[]):
            if anew:
                student._start(kind)
                student.source_ = found.source
            else:
                student._learner = self._learner.copy()
                student._names, student._stops = list(self._names), list(self._stops)
            student._take(
                X,
                names,
                found.ids if ids is None else ids,
                found.thumbnails if thumbnails is None else thumbnails,
            )
        self.__dict__ = student.__dict__
        return self

    def _read(self, X: Any, labelled: bool = False, anew: bool = False) -> Inputs:
        """Vectors as they are; all else through the encoder."""
        if isinstance(X, Inputs):
            return X
        reader = self.reader(anew)
        if not isinstance(X, str | Path):
            return reader.given(X) or Inputs(X)
        with _progress(self.progress) as say:
            found = reader.to_learn(Path(X), say) if labelled else reader.to_ask(str(X), say)
        for line in found.skipped:
            warnings.warn(f"left out: {line}", stacklevel=4)
        return found

    def reader(self, anew: bool = False) -> Reader:
        """What makes vectors of this model's inputs; `anew`: whatever it was taught with."""
        if not self.__sklearn_is_fitted__():
            return Reader(self.encoder, getattr(self, "source_", {}))
        return Reader(self.encoder) if anew else Reader(self.encoder, self.source_, self.n_features_in_)

    def _typed(self, label: Any) -> Label:
        """A label as typed, or as tables and folders have it -> of the type of this model's labels."""
        if not isinstance(label, str):
            known: Label = label
            return known
        try:
            if self._kind == "bool":
                return {"True": True, "False": False}[label]
            return {"str": str, "int": int, "float": float}[self._kind](label)
        except (ValueError, KeyError):
            raise InputError(f"labels of this model are of type {self._kind}, got {label!r}") from None

    def _start(self, kind: str) -> None:
        chosen, width = self._configuration(), self.n_features_in_
        self._learner = Learner(chosen, width, collection=milvus.collection(chosen.memory, width))
        self._folder: Path | None = None  # that the collection belongs to
        self._kind = kind
        self._names: list[Label | None] = []  # of every class in order of arrival, None once forgotten
        self._stops: list[int] = []  # classes after each call
        self._arrived = 0  # samples
        self._own_ids: dict[int, Id] = {}  # the caller's, of exemplars
        self._thumbnails: dict[int, np.ndarray] = {}
        self.history_: list[dict[str, Any]] = []
        self.temperature_ = 1.0
        self.threshold_: float | None = None
        self._usual = UNIT

    def _configuration(self) -> config.Config:
        settings = dict(self.settings or {})
        for key in settings:
            if key.startswith(("stream.", "images.")) or key in config.PARAMETERS:
                raise InputError(f"settings: {key!r} is not for here: a stream has no place in a classifier, and "
                                 f"{', '.join(config.PARAMETERS)} are parameters of their own")  # fmt: skip
        if not 0 <= self.false_alarms < 1:
            raise InputError(f"false_alarms must be at least 0 and below 1, got {self.false_alarms!r}")
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31)
        own = dict(zip(config.PARAMETERS, (self.method, self.memory, self.k, int(seed), self.device), strict=True))
        return config.classifier(own | settings)

    def _take(self, X: np.ndarray, names: list[Label], ids: Any, thumbnails: Any) -> None:
        own_ids, images = self._check_ids(ids, len(X)), _check_thumbnails(thumbnails, len(X))
        index = {name: place for place, name in enumerate(self._names) if name is not None}
        known, old = len(index), len(self._names)
        for name in sorted(set(names)):
            if name not in index:
                index[name] = len(self._names)
                self._names.append(name)
        y = torch.tensor([index[name] for name in names])
        numbers = torch.arange(self._arrived, self._arrived + len(X))
        mine = X.copy() if self._learner.method.remembers == "everything" else X  # what is kept is not the caller's
        samples = Samples(mine, np.arange(len(X)), y, numbers)
        task = Task(
            len(self._stops),
            tuple(slice(*ends) for ends in zip([0, *self._stops], [*self._stops, len(self._names)], strict=True)),
            tuple(str(name) for name in self._names[old:]),
            samples,
            samples.select(torch.zeros(0, dtype=torch.long)),
        )
        before = self._accuracy(samples.select(y < old)) if known else None
        with _progress(self.progress) as say:
            self._learner.learn_task(task, say)
            self._stops.append(len(self._names))
            self._arrived += len(X)
            self._own_ids = self._own_ids | dict(zip(numbers.tolist(), own_ids or [], strict=False))
            self._thumbnails = self._thumbnails | dict(zip(numbers.tolist(), images, strict=False))
            self._keep_what_is_remembered()
            self._calibrate(task)
        entry = {"samples": len(X), "new_classes": task.new, "classes": known + task.new, "accuracy_before": before}
        self.history_ = [*self.history_, entry]

    def _check_ids(self, ids: Any, count: int) -> list[Id] | None:
        if ids is None:
            clash = set(self._own_ids.values()) & set(range(self._arrived, self._arrived + count))
            if clash:
                raise InputError(f"ids must be given: the running number {min(clash, key=str)} is one of yours already")
            return None
        ids = [one.item() if isinstance(one, np.generic) else one for one in ids]
        if len(ids) != count:
            raise InputError(f"ids must be one a sample, {count}, got {len(ids)}")
        for one in ids:
            if not isinstance(one, str | int) or isinstance(one, bool):
                raise InputError(f"ids must be strings or integers, got {one!r}")
        taken = set(ids) & set(self._ids())
        if taken or len(set(ids)) < len(ids):
            twice = min(taken, key=str) if taken else next(one for one in ids if ids.count(one) > 1)
            raise InputError(f"ids must be different from each other and from those remembered, got {twice!r} twice")
        return ids

    def _accuracy(self, samples: Samples) -> float | None:
        if not len(samples):
            return None
        samples = self._some(samples)
        z, _ = self._ask(samples)
        return float((z.argmax(1) == samples.y).double().mean())

    def _calibrate(self, task: Task) -> None:
        """Temperature and threshold, on exemplars held out of training, or on all where the method holds none out."""
        learner = self._learner
        known = learner.memory.samples()
        if learner.past:
            known = Samples.join(learner.past)
        elif len(known):
            held = learner.method.held_out(task, learner.memory)
            known = known.select(held) if held.any() else known
        self.temperature_, self.threshold_, self._usual = 1.0, None, UNIT
        if not len(known):
            return
        known = self._some(known)
        z, found = self._ask(known, neighbours=True)
        live = self._live()
        if len(live) > 1:
            place = torch.full((len(self._names),), -1)
            place[live] = torch.arange(len(live))
            self.temperature_ = calibration.temperature(z[:, live], place[known.y])
        z = z.index_select(1, self._columns())
        self._usual = calibration.usual(self._oddness(z, found))
        self.threshold_ = calibration.threshold(self._novelty(z, found), self.false_alarms)

    def _some(self, samples: Samples) -> Samples:
        most = min(HELD_OUT, max(FEWEST, SCORES // 4 // len(self._names)))
        if len(samples) <= most:
            return samples
        drawn = torch.randperm(len(samples), generator=lesson.generator(self._learner.config.seed, "held out"))
        return samples.select(drawn[:most].sort().values)

    # ---- answers

    @property
    def classes_(self) -> np.ndarray:
        check_is_fitted(self)
        return np.array([self._names[place] for place in self._columns().tolist()])

    def predict(self, X: Any, unknown: Any = None) -> np.ndarray:
        """Labels; with `unknown`, that label where a query's novelty is beyond what known samples have."""
        best: list[np.ndarray] = []
        novelty: list[np.ndarray] = []
        for part in self._parts(self._validate(X)):
            z, found = self._scores(part, neighbours=unknown is not None)
            best.append(z.argmax(1).numpy())
            novelty += [] if unknown is None else [self._novelty(z, found)]
        answers = self.classes_[np.concatenate(best)]
        if unknown is None:
            return answers
        if self.threshold_ is None:
            raise InputError(f"unknown: method {self.method!r} keeps no exemplars to tell by what is unknown")
        new = np.concatenate(novelty) > self.threshold_
        kind = KINDS.get(np.asarray(unknown).dtype.kind)
        mixed = answers.astype(np.result_type(answers, np.asarray(unknown)) if kind == self._kind else object)
        mixed[new] = unknown
        return mixed

    def predict_proba(self, X: Any) -> np.ndarray:
        """N,C in the order of `classes_`."""
        z, _ = self._scores(X)
        return calibration.probabilities(z, self.temperature_).numpy()

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores, N,C in the order of `classes_`; of two classes N, the second's less the first's."""
        z = self._scores(X)[0].double().numpy()
        return z[:, 1] - z[:, 0] if z.shape[1] == 2 else z

    def novelty(self, X: Any) -> np.ndarray:
        """N: the higher, the less a query is like any known class."""
        return self._novelty(*self._scores(X, neighbours=True))

    def assess(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """`predict_proba` and `novelty` for the price of one."""
        z, found = self._scores(X, neighbours=True)
        return calibration.probabilities(z, self.temperature_).numpy(), self._novelty(z, found)

    def kneighbors(
        self, X: Any, n_neighbors: int | None = None, return_distance: bool = True
    ) -> tuple[np.ndarray, np.ndarray] | np.ndarray:
        """Cosine distances and rows of `memory_`, nearest first."""
        samples = self._validate(X)
        k = self._learner.config.method.k if n_neighbors is None else n_neighbors
        if not 1 <= k <= len(self._learner.memory):
            raise InputError(f"n_neighbors must be from 1 to {len(self._learner.memory)}, what is remembered, got {k}")
        found = self._nearest(samples, k)
        rows = found.index.long().cpu().numpy()
        distance = 1 - found.similarity.double().cpu().numpy()
        return (distance.clip(min=0), rows) if return_distance else rows

    @torch.no_grad()
    def explain(self, X: Any) -> list[Evidence]:
        """What each answer rests on: the remembered neighbours, before and after the transformer."""
        samples = self._validate(X)
        z, found = self._scores(samples, neighbours=True)
        shares = calibration.probabilities(z, self.temperature_)
        novelty, best, classes = self._novelty(z, found), shares.max(1), self.classes_
        near: list[list[Neighbour]] = [[] for _ in range(len(samples))]
        if found is not None:
            near = self._neighbours(samples, found)
        return [
            Evidence(classes[int(best.indices[row])].item(), float(best.values[row]), float(novelty[row]), near[row])
            for row in range(len(samples))
        ]

    def _neighbours(self, samples: Samples, found: Retrieval) -> list[list[Neighbour]]:
        method, ids, labels = self._learner.method, self._ids(), self._learner.memory.y.tolist()
        near: list[list[Neighbour]] = []
        for rows in samples.chunks():
            batch = found[rows]
            seen = method.evidence(samples.x(rows).to(method.seen.device), batch) if method.uses_neighbours else None
            after, attention = (None, None) if seen is None else (part.tolist() for part in seen)
            for query, places in enumerate(found.index[rows].tolist()):
                near.append(
                    [
                        Neighbour(
                            ids[place],
                            self._names[labels[place]],
                            float(batch.similarity[query, rank]),
                            None if after is None else after[query][rank],
                            None if attention is None else attention[query][rank],
                        )
                        for rank, place in enumerate(places)
                        if place >= 0
                    ]
                )
        return near

    def _scores(self, X: Any, neighbours: bool = False) -> tuple[Tensor, Retrieval | None]:
        """N,C in the order of `classes_`, and the neighbours if they were looked up."""
        z, found = self._queries(X, neighbours)
        return z.index_select(1, self._columns()), found

    def _parts(self, samples: Samples) -> Iterator[Samples]:
        """So many at a time that their scores fit: with 200 000 classes a thousand take a gigabyte."""
        for rows in samples.chunks(max(SCORED, SCORES // len(self._names) // SCORED * SCORED)):
            yield samples.select(torch.arange(rows.start, rows.stop))

    def _queries(self, X: Any, neighbours: bool = False) -> tuple[Tensor, Retrieval | None]:
        return self._ask(self._validate(X), neighbours)

    def _validate(self, X: Any) -> Samples:
        check_is_fitted(self)
        if not len(self._columns()):
            raise InputError("every class has been forgotten: teach one first")
        if isinstance(X, Samples):  # of `asked`
            return X
        return asked(validate_data(self, self._read(X).x, reset=False, dtype=[np.float64, np.float32]))

    def _ask(self, samples: Samples, neighbours: bool = False) -> tuple[Tensor, Retrieval | None]:
        """N,C scores in order of arrival, -inf for a forgotten class, and the neighbours if they were looked up."""
        learner, whole, found = self._learner, _padded(len(samples), SCORED), None
        if learner.method.uses_neighbours or (neighbours and len(learner.memory)):
            found = self._nearest(samples, learner.config.method.k)
        near = found.of(whole) if found is not None and learner.method.uses_neighbours else None
        scored = lesson.scores(learner.method, samples.select(whole), near)
        z = torch.cat([part.cpu() for _, part in scored])[: len(samples)]
        z[:, sorted(learner.method.forgotten)] = -torch.inf
        return z, found

    def _nearest(self, samples: Samples, k: int) -> Retrieval:
        memory, device = self._learner.memory, self._learner.method.seen.device
        if device.type == "cpu":
            memory.turn()
        whole = samples.select(_padded(len(samples), SEARCHED))
        return nearest(whole, memory, k, device).of(slice(0, len(samples)))

    def _novelty(self, z: Tensor, found: Retrieval | None) -> np.ndarray:
        return calibration.novelty(self._oddness(z, found), self._usual).numpy()

    def _oddness(self, z: Tensor, found: Retrieval | None) -> Tensor:
        similarity = torch.zeros(len(z), 0) if found is None else found.similarity.cpu()
        return calibration.oddness(z, similarity)

    def _live(self) -> list[int]:
        return [place for place, name in enumerate(self._names) if name is not None]

    def _columns(self) -> Tensor:
        """Places of the classes in order of arrival, sorted by label."""
        return _by_label(tuple(self._names))

    # ---- what is remembered

    @property
    def memory_(self) -> list[Exemplar]:
        check_is_fitted(self)
        labels = self._learner.memory.y.tolist()
        return [Exemplar(one, self._name(labels[row]), row) for row, one in enumerate(self._ids())]

    @property
    def thumbnails_(self) -> dict[Id, np.ndarray]:
        check_is_fitted(self)
        return {self._own_ids.get(number, number): image for number, image in self._thumbnails.items()}

    def forget(self, label: Label) -> "MTNClassifier":
        """Drop a class for good: its exemplars, its rows in the weights, its name. Taught again, it is a new class."""
        place = self._find(label)
        self._learner.forget(place)
        self._learner.method.recall(self._learner.memory)
        self._names = [name if index != place else None for index, name in enumerate(self._names)]
        self._keep_what_is_remembered()
        return self

    def rename(self, old: Label, new: Label) -> "MTNClassifier":
        place = self._find(old)
        new = new.item() if isinstance(new, np.generic) else new
        if type(new).__name__ != self._kind:
            raise InputError(f"new must be of the same type as the labels ({self._kind}), got {new!r}")
        if new in self._names:
            raise InputError(f"new must not be the label of another class, got {new!r}")
        self._names = [name if index != place else new for index, name in enumerate(self._names)]
        return self

    def remove_exemplar(self, id: Id) -> "MTNClassifier":
        """Take one sample out of the memory."""
        row = self._row(id)
        self._learner.memory.remove(torch.arange(len(self._learner.memory)) == row)
        self._learner.method.recall(self._learner.memory)
        self._keep_what_is_remembered()
        return self

    def relabel_exemplar(self, id: Id, label: Label) -> "MTNClassifier":
        """Say that a remembered sample is of another known class; what was trained follows at the next learning."""
        self._learner.memory.relabel(self._row(id), self._find(label))
        self._learner.method.recall(self._learner.memory)
        return self

    def _ids(self) -> list[Id]:
        return [self._own_ids.get(number, number) for number in self._learner.memory.id.tolist()]

    def _name(self, place: int) -> Label:
        name = self._names[place]
        assert name is not None  # a forgotten class has no exemplars
        return name

    def _row(self, id: Id) -> int:
        check_is_fitted(self)
        ids = self._ids()
        if id not in ids:
            raise InputError(f"no exemplar has the id {id!r}; memory_ lists those there are")
        return ids.index(id)

    def _find(self, label: Label) -> int:
        check_is_fitted(self)
        if label is None or label not in self._names:
            raise InputError(f"no class {label!r}: {closest(str(label), map(str, self.classes_))}")
        return self._names.index(label)

    def _keep_what_is_remembered(self) -> None:
        if not self._own_ids and not self._thumbnails:
            return
        numbers = set(self._learner.memory.id.tolist())
        self._own_ids = {number: own for number, own in self._own_ids.items() if number in numbers}
        self._thumbnails = {number: image for number, image in self._thumbnails.items() if number in numbers}

    # ---- on disk

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder, new or holding an older state of it. A kill leaves the old or the new one.

        Of a memory in Milvus, what lost its place is deleted there after that; another folder gets a collection of its
        own.
        """
        if self.encoder is None:
            check_is_fitted(self)
        saved.save(self, Path(folder))

    def move_memory(self, uri: str | None) -> "MTNClassifier":
        """Put what is remembered into Milvus, or with None back into the model's folder; `save` makes it last."""
        check_is_fitted(self)
        place = {"store": "exact" if uri is None else "milvus", "uri": uri}
        chosen = self._learner.config.replace(memory=place)
        self._learner.memory = self._learner.memory.moved(milvus.collection(chosen.memory, self.n_features_in_))
        self._folder = None  # the one it was in has the old collection
        others = {key: value for key, value in (self.settings or {}).items() if key not in PLACE}
        self.settings = others | (dict(zip(PLACE, place.values(), strict=True)) if uri else {}) or None
        return self

    def _collection(self) -> milvus.Collection | None:
        """Where the vectors are, if not here."""
        x = self._learner.memory.x
        return x.collection if isinstance(x, milvus.Remote) else None

    @classmethod
    def load(cls, folder: str | Path, encoder: Named | None = None) -> "MTNClassifier":
        """The model saved in a folder: its answers are those it had, bit for bit.

        `encoder` tells where the model's encoder is now, if not where it was.
        """
        it = saved.load(cls, Path(folder))
        it.encoder = encoder or it.encoder
        return it

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learner")


@contextmanager
def _progress(wanted: bool | Progress) -> Iterator[Progress]:
    if not isinstance(wanted, bool):
        yield wanted
        return
    if not wanted:
        yield silent
        return
    with bar(Console(stderr=True)) as say:
        yield say


def asked(x: np.ndarray) -> Samples:
    """N,D finite numbers, as many as the model's vectors have -> queries that are not looked at again."""
    nobody = torch.full((len(x),), -1)
    return Samples(x, np.arange(len(x)), nobody, nobody)


@lru_cache(8)
def _by_label(names: tuple[Label | None, ...]) -> Tensor:
    """Places of the names, sorted by name. They are many, and the same at every question."""
    live = [place for place, name in enumerate(names) if name is not None]
    return torch.tensor(sorted(live, key=lambda place: names[place]), dtype=torch.long)


def _padded(count: int, multiple: int) -> Tensor:
    """Rows of `count` samples, some of them again, up to a multiple."""
    return torch.arange(-(-count // multiple) * multiple) % count


def _labels(y: np.ndarray) -> tuple[list[Label], str]:
    """Labels as Python has them, and their type."""
    if y.dtype.kind == "O":
        types = {type(one.item() if isinstance(one, np.generic) else one).__name__ for one in y}
        if len(types) > 1 or not types <= {"str", "int", "bool", "float"}:
            raise InputError(f"y must be all strings or all integers, got {' and '.join(sorted(types))}")
        y = np.array(y.tolist())
    check_classification_targets(y)
    kind: Literal["str", "int", "bool", "float"] | None = KINDS.get(y.dtype.kind)  # type: ignore[assignment]
    if kind is None:
        raise InputError(f"y must be all strings or all integers, got {y.dtype}")
    return y.tolist(), kind


def _check_thumbnails(thumbnails: Any, count: int) -> list[np.ndarray]:
    if thumbnails is None:
        return []
    images = np.asarray(thumbnails)
    if not are_pixels(images):
        raise InputError(f"thumbnails must be uint8 of shape N,H,W or N,H,W,3, got {images.dtype} {images.shape}")
    if len(images) != count:
        raise InputError(f"thumbnails must be one a sample, {count}, got {len(images)}")
    return [image.copy() for image in images]
