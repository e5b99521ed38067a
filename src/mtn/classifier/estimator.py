"""MTNClassifier: a scikit-learn classifier that is taught class after class, none of them announced."""

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from mtn.classifier import queries, saving, teaching
from mtn.classifier.answering import AnsweringModel
from mtn.classifier.labels import Id, Label, check_labels, check_within, read_labels
from mtn.classifier.notebook import NotebookMixin
from mtn.classifier.sharing import HubMixin
from mtn.config import Config
from mtn.errors import InputError
from mtn.runtime.capacity import check_fits
from mtn.samples import warn_of_lengths
from mtn.storage.recorded import Recorded

STORE_KEYS = ("memory.store", "memory.uri")


class MTNClassifier(NotebookMixin, ClassifierMixin, AnsweringModel, BaseEstimator, HubMixin):  # type: ignore[misc]  # untyped
    """A classifier that keeps learning new classes, and shows what each answer rests on.

    X are feature vectors, images (paths, PIL images, uint8 arrays), sentences, or the path of what the commands take:
    a folder, a table, a store.

    Threads may share it: a query is answered from before or after another thread's teaching, never from in between.

    Parameters
    ----------
    method : str
        Name of a method (docs/methods), or one of your own as package.module:Class.
    memory : int
        Exemplars remembered over all classes.
    k : int
        Neighbours looked up for a query.
    false_alarms : float
        Share of known samples that `predict(X, unknown=...)` may call unknown.
    random_state : int, RandomState or None
        Seed of initialisation and sampling.
    device : "auto", "cpu", "cuda" or "mps"
        Where it computes; "auto": a GPU where there is one.
    progress : bool or function
        Show on the terminal how far learning is, or call the function with what is done, how much of it, of how much.
    settings : dict or None
        Any other key of a recipe, dotted: {"train.min_steps": 100}.
    encoder : str, callable, Encoder or None
        Encoder of images or sentences: a name, a path, or a function (docs/how-to/encoders.md). None or "auto":
        the best that is here for the first items taught; `source_` names it.
    keep_text : bool
        Keep the sentences that are remembered, for `explain`; False: only their vectors, here and on disk.

    Attributes
    ----------
    classes_ : ndarray
        C sorted labels of the classes known now; columns of `predict_proba` follow it.
    memory_ : list of Exemplar
        What is remembered.
    history_ : list of dict
        Of each lesson: samples, new classes, classes, accuracy before it, estimated accuracy after it.
    thumbnails_ : dict
        Images of exemplars by id, for `mtn.plot_evidence`.
    temperature_ : float
        What scores are divided by before the softmax of `predict_proba`.
    threshold_ : float or None
        The novelty above which `predict(X, unknown=...)` calls a query unknown; None: nothing to tell by.
    source_ : dict
        How the vectors were made, {"encoder": its identity, "kind": ...} or {"columns": [...]}; empty: unknown.
    state_ : ClassifierState
        All of it in one object, to be read only.
    """

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: each classifier has a lock of its own."""
        return {name: value for name, value in super().__getstate__().items() if name != "_teaching"}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        super().__setstate__(attributes)
        self._teaching = threading.RLock()

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
        polish: bool = True,
    ) -> "MTNClassifier":
        """Learn more: new classes, any number of them, and more samples of known ones.

        `classes` is not needed: it only checks y. `ids` name the samples in `explain` and `memory_`, in place of
        running numbers. `thumbnails`, N,H,W or N,H,W,3 of uint8, are kept for the samples that are remembered. Without
        y, X has labels of its own: it is the path of a folder, a table, a store. `polish=False` trains nothing: it is
        for a copy that answers at once, while the classifier itself learns the same samples.
        """
        if classes is not None:
            check_within(y, classes)
        return self._learn(X, y, ids, thumbnails, anew=False, polish=polish)

    def _learn(self, X: Any, y: Any, ids: Any, thumbnails: Any, *, anew: bool, polish: bool = True) -> Self:
        """The new state takes the old one's place at the end: an error or an interrupt leaves everything as it was."""
        with self._teaching:
            state = None if anew else self._state
            inputs = self._read(X, self._state, labelled=True, anew=anew)
            if y is None and inputs.labels is not None:
                y = inputs.labels if state is None else [state.parse_label(label) for label in inputs.labels.tolist()]
            check_labels(y, () if state is None else state.names)
            X, y, count, columns = queries.validate_training(state, inputs.x, y, type(self).__name__)
            names, kind = read_labels(y)
            warn_of_lengths(X, np.asarray(y), stacklevel=4)
            if state is None:
                config = self.configuration()
                check_fits(config, count, len(set(names)), len(X))
                uri = (self.settings or {}).get("memory.uri")
                state = teaching.new_state(config, kind, count, columns, inputs.source, uri)
            elif kind != state.label_kind:
                raise InputError(f"y must be of the same type as the labels before ({state.label_kind}), got {kind}")
            ids = inputs.ids if ids is None else ids
            thumbnails = inputs.thumbnails if thumbnails is None else thumbnails
            texts = inputs.texts if self.keep_text else None
            learn = partial(teaching.learn, progress=self.progress, false_alarms=self.false_alarms, polish=polish)
            self._state = learn(state, X, names, ids, thumbnails, texts)
        return self

    def configuration(self) -> Config:
        """What `fit` would learn with; an error for a parameter that is wrong."""
        return teaching.configuration(**self.get_params(deep=False))

    # ---- corrections

    def forget(self, label: Label) -> "MTNClassifier":
        """Drop a class for good: its exemplars, its rows in the weights, its name. Taught again, it is a new class."""
        with self._teaching:
            self._state = teaching.forget(self.state_, label)
        return self

    def rename(self, old: Label, new: Label) -> "MTNClassifier":
        """Give a class another label, of the same type as the others."""
        with self._teaching:
            self._state = teaching.rename(self.state_, old, new)
        return self

    def remove_exemplar(self, id: Id) -> "MTNClassifier":
        """Take one sample out of the memory."""
        with self._teaching:
            self._state = teaching.remove_exemplar(self.state_, id)
        return self

    def relabel_exemplar(self, id: Id, label: Label) -> "MTNClassifier":
        """Say that a remembered sample is of another known class; what was trained follows at the next learning."""
        with self._teaching:
            self._state = teaching.relabel_exemplar(self.state_, id, label)
        return self

    def annotate(self, **facts: Any) -> "MTNClassifier":
        """Add facts of your own to the latest entry of `history_`: plain values, which are saved with the model."""
        with self._teaching:
            self._state = teaching.annotate(self.state_, facts)
        return self

    def move_memory(self, uri: str | None) -> "MTNClassifier":
        """Put what is remembered into Milvus, or with None back into the model's folder; `save` makes it last."""
        with self._teaching:
            old = self.state_.memory.location
            self._state = teaching.move_memory(self.state_, uri)
            if old is not None and not isinstance(old.uri, Recorded):
                self._milvus = old.uri  # where `save` will delete what has moved
            others = {key: value for key, value in (self.settings or {}).items() if key not in STORE_KEYS}
            self.settings = others | (dict(zip(STORE_KEYS, ("milvus", uri), strict=True)) if uri else {}) or None
        return self

    # ---- on disk

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder, new or holding an older state of it. A kill leaves the old or the new one.

        Of a memory in Milvus, what lost its place is deleted there after that; another folder gets its own collection.
        """
        if self.encoder is None:
            _ = self.state_  # an error where nothing has been taught
        with self._teaching:
            state, parameters = self._state, self.get_params(deep=False)
            if state is None:
                return saving.save_untaught(Path(folder), parameters, self._source or {})
            self._state, replaced = saving.save_state(state, Path(folder), parameters, self._milvus)
            self._state = saving.release_unsaved(self._state, replaced)
