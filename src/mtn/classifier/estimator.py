"""MTNClassifier: a scikit-learn classifier that is taught class after class, none of them announced."""

import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from mtn.classifier import explanation, info, queries, saving, schema, teaching
from mtn.classifier.labels import Id, Label, check_labels, check_within, read_labels
from mtn.classifier.sharing import HubMixin
from mtn.classifier.state import ClassifierState, Exemplar
from mtn.config import Config
from mtn.data.inputs import Inputs
from mtn.data.reader import EncoderSpec, Reader
from mtn.errors import InputError
from mtn.evidence import Evidence
from mtn.runtime.capacity import check_fits
from mtn.runtime.progress import Progress
from mtn.samples import Samples, warn_of_lengths
from mtn.storage.model_folder import read_model_folder
from mtn.storage.recorded import Recorded

STORE_KEYS = ("memory.store", "memory.uri")


class MTNClassifier(ClassifierMixin, BaseEstimator, HubMixin):  # type: ignore[misc]  # scikit-learn has no types
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
    device : "auto", "cpu", "cuda" or "mps"
    progress : bool or function
        Show on the terminal how far learning is, or call the function with what is done, how much of it, of how much.
    settings : dict or None
        Any other key of a recipe, dotted: {"train.min_steps": 100}.
    encoder : str, callable, Encoder or None
        Encoder of images or sentences: a name, a path, or a function (docs/encoders.md). None or "auto":
        the best that is here for the first items taught; `source_` names it.
    keep_text : bool
        Keep the sentences that are remembered, for `explain`; False: only their vectors, here and on disk.

    Attributes
    ----------
    classes_ : sorted labels of the classes known now; columns of `predict_proba` follow it.
    memory_ : what is remembered, a list of `Exemplar`.
    history_ : of each call: samples, new classes, classes, accuracy before it, estimated accuracy after it.
    thumbnails_ : images of exemplars by id, for `mtn.plot_evidence`.
    temperature_ : what scores are divided by before the softmax of `predict_proba`.
    threshold_ : the novelty above which `predict(X, unknown=...)` calls a query unknown; None: nothing to tell by.
    source_ : how the vectors were made, {"encoder": its identity, "kind": ...} or {"columns": [...]}; empty: unknown.
    state_ : all of it in one object (`mtn.classifier.ClassifierState`), to be read only.
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
        encoder: EncoderSpec | None = None,
        keep_text: bool = True,
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
        self.keep_text = keep_text
        self._state: ClassifierState | None = None
        self._source: dict[str, Any] | None = None  # what an untaught classifier will take
        self._milvus: str | None = None  # a URI that the user named, beside that in `settings`
        self._teaching = threading.RLock()  # held from reading `_state` to replacing it

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: each classifier has a lock of its own."""
        return {name: value for name, value in super().__getstate__().items() if name != "_teaching"}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        super().__setstate__(attributes)
        self._teaching = threading.RLock()

    def __sklearn_is_fitted__(self) -> bool:
        return self._state is not None

    # ---- what has been learned

    @property
    def state_(self) -> ClassifierState:
        check_is_fitted(self)
        state = self._state
        assert state is not None
        return state

    @property
    def classes_(self) -> np.ndarray:
        return self.state_.classes()

    @property
    def memory_(self) -> list[Exemplar]:
        return self.state_.exemplars()

    @property
    def history_(self) -> list[dict[str, Any]]:
        return [dict(entry) for entry in self.state_.history]

    @property
    def thumbnails_(self) -> dict[Id, np.ndarray]:
        state = self.state_
        return {state.own_ids.get(number, number): image for number, image in state.thumbnails.items()}

    @property
    def temperature_(self) -> float:
        return self.state_.temperature

    @property
    def threshold_(self) -> float | None:
        return self.state_.threshold

    @property
    def n_features_in_(self) -> int:
        return self.state_.feature_count

    @property
    def feature_names_in_(self) -> np.ndarray:
        names = self.state_.feature_names
        if names is None:
            raise AttributeError("feature_names_in_: the classifier was not taught a table with named columns")
        return names

    @property
    def source_(self) -> dict[str, Any]:
        if self._state is None and self._source is not None:
            return self._source
        return self.state_.source

    @source_.setter
    def source_(self, source: dict[str, Any]) -> None:
        """Say what a classifier will take before it is taught; teaching finds out by itself."""
        if self._state is not None:
            raise AttributeError("source_ cannot be set: the classifier has been taught")
        self._source = source

    def info(self) -> dict[str, Any]:
        """What `mtn info` tells, as plain values."""
        return info.describe(saving.describe_state(self.state_))

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
        if classes is not None:
            check_within(y, classes)
        return self._learn(X, y, ids, thumbnails, anew=False)

    def _learn(self, X: Any, y: Any, ids: Any, thumbnails: Any, *, anew: bool) -> "MTNClassifier":
        """The new state takes the old one's place at the end: an error or an interrupt leaves everything as it was."""
        with self._teaching:
            state = None if anew else self._state
            inputs = self._read(X, self._state, labelled=True, anew=anew)
            if y is None and inputs.labels is not None:
                labels = inputs.labels
                y = labels if state is None else [state.parse_label(label) for label in labels.tolist()]
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
            self._state = teaching.learn(
                state,
                X,
                names,
                inputs.ids if ids is None else ids,
                inputs.thumbnails if thumbnails is None else thumbnails,
                inputs.texts if self.keep_text else None,
                progress=self.progress,
                false_alarms=self.false_alarms,
            )
        return self

    def configuration(self) -> Config:
        """What `fit` would learn with; an error for a parameter that is wrong."""
        return teaching.configuration(**self.get_params(deep=False))

    def reader(self, anew: bool = False) -> Reader:
        """What reads this model's inputs as vectors; `anew`: whatever it was taught with."""
        return self._reader(self._state, anew)

    def _reader(self, state: ClassifierState | None, anew: bool) -> Reader:
        if state is None:
            return Reader(self.encoder, self._source or {})
        return Reader(self.encoder) if anew else Reader(self.encoder, state.source, state.feature_count)

    def _read(self, X: Any, state: ClassifierState | None, labelled: bool = False, anew: bool = False) -> Inputs:
        """Vectors as they are; all else through the encoder."""
        if isinstance(X, Inputs):
            return X
        reader = self._reader(state, anew)
        if not isinstance(X, str | Path):
            return reader.encode_items(X) or Inputs(X)
        with teaching.shown_progress(self.progress) as report:
            inputs = reader.to_learn(Path(X), report) if labelled else reader.to_ask(str(X), report)
        for line in inputs.skipped:
            warnings.warn(f"left out: {line}", stacklevel=4)
        return inputs

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

    # ---- answers: each takes the state once, and uses nothing else

    def predict(self, X: Any, unknown: Any = None) -> np.ndarray:
        """Labels; with `unknown`, that label where a query's novelty is beyond what known samples have.

        `unknown` may also be N labels, one a query, such as `nearest_names` gives.
        """
        state = self.state_
        return queries.predict(state, self._validate(state, X), unknown)

    def predict_proba(self, X: Any) -> np.ndarray:
        """N,C in the order of `classes_`."""
        state = self.state_
        samples = self._validate(state, X)
        return queries.probabilities(state, queries.scores(state, samples, queries.neighbours(state, samples)))

    def nearest_names(self, X: Any, names: Sequence[str]) -> np.ndarray:
        """N: of each image, that of the names whose text is nearest (zero-shot); nothing need be taught.

        It takes an encoder that was trained on images with their texts: CLIP or SigLIP.
        """
        state = self._state
        encoder = self._reader(state, anew=False).encoder_for("image")
        return queries.nearest_names(self._read(X, state).x, names, encoder)

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores, N,C in the order of `classes_`; of two classes N, the second's less the first's."""
        state = self.state_
        return queries.decision(state, self._validate(state, X))

    def novelty(self, X: Any) -> np.ndarray:
        """N: the higher, the less a query is like any known class."""
        return self.assess(X)[1]

    def assess(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """`predict_proba` and `novelty` for the price of one."""
        state = self.state_
        samples = self._validate(state, X)
        retrieval = queries.neighbours(state, samples, wanted=True)
        z = queries.scores(state, samples, retrieval)
        return queries.probabilities(state, z), queries.novelty(state, samples, z, retrieval)

    def kneighbors(
        self, X: Any, n_neighbors: int | None = None, return_distance: bool = True
    ) -> tuple[np.ndarray, np.ndarray] | np.ndarray:
        """Cosine distances and rows of `memory_`, nearest first."""
        state = self.state_
        distance, rows = queries.kneighbors(state, self._validate(state, X), n_neighbors)
        return (distance, rows) if return_distance else rows

    def explain(self, X: Any) -> list[Evidence]:
        """What each answer rests on: neighbours before and after the transformer, and the parts of the score."""
        state = self.state_
        inputs = X if isinstance(X, Samples) else self._read(X, state)
        return explanation.explain(state, self._validate(state, inputs), getattr(inputs, "texts", None))

    def _validate(self, state: ClassifierState, X: Any) -> Samples:
        """X as queries; those of `as_queries` are taken as they are."""
        if not len(state.columns):
            raise InputError("every class has been forgotten: teach one first")
        if isinstance(X, Samples):
            return X
        return queries.validate(state, self._read(X, state).x, type(self).__name__)

    # ---- on disk

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder, new or holding an older state of it. A kill leaves the old or the new one.

        Of a memory in Milvus, what lost its place is deleted there after that; another folder gets a collection of its
        own.
        """
        if self.encoder is None:
            check_is_fitted(self)
        with self._teaching:
            state, parameters = self._state, self.get_params(deep=False)
            if state is None:
                return saving.save_untaught(Path(folder), parameters, self._source or {})
            self._state, replaced = saving.save_state(state, Path(folder), parameters, self._milvus)
            self._state = saving.release_unsaved(self._state, replaced)

    @classmethod
    def load(cls, folder: str | Path, encoder: EncoderSpec | None = None, milvus: str | None = None) -> Self:
        """The model saved in a folder: its answers are those it had, bit for bit.

        `encoder` is the model's encoder. It need not be given if the folder names one of the table, one in the hub's
        cache, or a function of yours that is imported: because of a folder nothing is imported, and no path opened.
        `milvus` is the URI of the Milvus that has the exemplars, if one has them; else MTN_MILVUS_ALLOW must list it,
        or it must be a file in the folder. The first use connects, and checks that the exemplars are there.
        """
        folder = Path(folder)
        facts, parts = read_model_folder(folder)
        with saving.damage_reported(folder / "model.json"):
            schema.check_facts(facts)
            classifier = cls(**saving.restore_parameters(facts, folder, milvus))
            classifier._source, classifier._milvus = saving.restore_source(facts), milvus
            classifier._state = saving.restore_state(facts, parts, folder, milvus)
        classifier.encoder = encoder or classifier.encoder
        return classifier
