"""What a model answers, from its folder or as it was taught: all of MTNClassifier that does without scikit-learn, which
takes as long to import as torch does."""

import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from mtn.classifier import explanation, info, queries, saving, schema
from mtn.classifier.labels import Id
from mtn.classifier.state import ClassifierState, Exemplar
from mtn.data.inputs import Inputs
from mtn.data.reader import EncoderSpec, Reader
from mtn.errors import InputError
from mtn.evidence import Evidence
from mtn.runtime.progress import Progress, shown_progress
from mtn.samples import Samples
from mtn.storage.model_folder import read_model_folder


class AnsweringModel:
    """The parameters of MTNClassifier, what has been learned, and the answers; `mtn predict` and `mtn explain` load it.

    Parameters and attributes are those of MTNClassifier.
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

    def __sklearn_is_fitted__(self) -> bool:
        return self._state is not None

    # ---- what has been learned

    @property
    def state_(self) -> ClassifierState:
        if self._state is None:
            from sklearn.exceptions import NotFittedError  # here: an answer does without scikit-learn

            told = "Call 'fit' with appropriate arguments before using this estimator."
            raise NotFittedError(f"This {type(self).__name__} instance is not fitted yet. {told}")
        return self._state

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

    # ---- inputs

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
        with shown_progress(self.progress) as report:
            inputs = reader.to_learn(Path(X), report) if labelled else reader.to_ask(str(X), report)
        for line in inputs.skipped:
            warnings.warn(f"left out: {line}", stacklevel=4)
        return inputs

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
