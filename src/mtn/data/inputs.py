"""Samples for a model: vectors with labels, ids and thumbnails, read from whatever holds vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mtn.data import array_files, arrays
from mtn.data.feature_store import FeatureStore, load_feature_store
from mtn.data.sources import LABELLED, DataSource, Format
from mtn.data.vector_tables import VectorTable, read_vector_table
from mtn.errors import InputError
from mtn.runtime.progress import Progress, silent


@dataclass(frozen=True)
class Inputs:
    """N samples. `source` records how their vectors were made: {encoder, kind}, or the {columns} of a table."""

    x: Any  # N,D
    ids: list[Any] | None = None  # N; None: they have none of their own
    labels: np.ndarray | None = None  # N; None: there are none. Of queries some may be None
    thumbnails: np.ndarray | None = None  # N,S,S or N,S,S,3 uint8
    source: dict[str, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # what could not be read, and why
    texts: list[str] | None = None  # N sentences, if the vectors were made of sentences; empty: not of that sample

    def __len__(self) -> int:
        return len(self.x)

    def select(self, rows: Sequence[int]) -> "Inputs":
        """Some of the samples."""
        return replace(
            self,
            x=self.x[rows],
            ids=None if self.ids is None else [self.ids[row] for row in rows],
            labels=None if self.labels is None else self.labels[rows],
            thumbnails=None if self.thumbnails is None else self.thumbnails[rows],
            texts=None if self.texts is None else [self.texts[row] for row in rows],
        )

    @staticmethod
    def join(parts: "Sequence[Inputs]") -> "Inputs":
        """Several as one; all have thumbnails, or none, and so with texts."""
        thumbnails = [part.thumbnails for part in parts if part.thumbnails is not None]
        labels = [label for part in parts for label in (part.labels if part.labels is not None else [None] * len(part))]
        return Inputs(
            np.concatenate([part.x for part in parts]),
            [id for part in parts for id in part.ids or range(len(part))],
            np.array(labels, dtype=object) if any(label is not None for label in labels) else None,
            thumbnails=np.concatenate(thumbnails) if thumbnails else None,
            source=parts[0].source,
            skipped=[line for part in parts for line in part.skipped],
            texts=[text for part in parts for text in part.texts or ()] if all(part.texts for part in parts) else None,
        )


def read_labelled_vectors(source: DataSource, progress: Progress = silent) -> Inputs:
    """Samples to learn from: the training split, or all where there are no splits."""
    path = source.arrays_path(progress)
    if path is not None:
        return _labelled_arrays(path)
    if source.format is Format.STORE:
        store = load_feature_store(source.path, progress)
        rows = store.rows("train")
        if not len(rows):
            raise InputError(f"{store.folder} has no sample in the split 'train'")
        return _of_store(store, rows)
    if source.format is Format.VECTOR_TABLE:
        table = read_vector_table(source.path, labelled=True, columns=source.columns)
        rows = np.flatnonzero(table.splits == "train")
        if not len(rows):
            raise InputError(f"{table.path} has no sample in the split 'train'")
        return _of_table(table, rows)
    source.refuse(LABELLED)


def read_query_vectors(source: DataSource, progress: Progress = silent, *, whole_table: bool) -> Inputs:
    """Queries, with labels where there are any: the test split, or all where there is none.

    With `whole_table`, all rows of a table.
    """
    path = source.arrays_path(progress)
    if path is not None:
        return _query_arrays(path)
    if source.format is Format.STORE:
        store = load_feature_store(source.path, progress)
        return _of_store(store, _test_rows(store.splits))
    if source.format is Format.VECTOR_TABLE:
        table = read_vector_table(source.path, labelled=False, columns=source.columns)
        return _of_table(table, np.arange(len(table.x)) if whole_table else _test_rows(table.splits))
    assert source.format is Format.ARRAY
    x = array_files.read_npy(source.path)
    arrays.check_matrix(x, "the array", source.path)
    return Inputs(_checked_floats(x, "the array", source.path))


def _test_rows(splits: np.ndarray) -> np.ndarray:
    """The rows of the test split, or all where there is none."""
    rows = np.flatnonzero(splits == "test")
    return rows if len(rows) else np.arange(len(splits))


def _of_store(store: FeatureStore, rows: np.ndarray) -> Inputs:
    made = {"encoder": store.facts["encoder"], "kind": store.facts["kind"]}
    return Inputs(store.x[rows].astype(np.float32), store.ids[rows].tolist(), store.labels[rows], source=made)


def _of_table(table: VectorTable, rows: np.ndarray) -> Inputs:
    ids = None if table.ids is None else [table.ids[row] for row in rows]
    labels = None if table.labels is None else table.labels[rows]
    return Inputs(table.x[rows], ids, labels, source={"columns": table.columns})


def _labelled_arrays(path: Path) -> Inputs:
    """x and y, or x_train and y_train of a data set."""
    content = arrays.read_arrays(path, ("x", "y", "x_train", "y_train", "names"))
    names = next((pair for pair in (("x", "y"), ("x_train", "y_train")) if pair[0] in content), None)
    if names is None:
        raise InputError(f"{path} lacks x and y")
    if names[1] not in content:
        raise InputError(f"{path} lacks {names[1]}, the label of each row of {names[0]}")
    return _of_arrays(content, *names, path)


def _query_arrays(path: Path) -> Inputs:
    """x, or x_test of a data set, or its x_train, with the labels if they are there."""
    content = arrays.read_arrays(path, ("x", "y", "x_test", "y_test", "x_train", "y_train", "names"))
    pairs = (("x", "y"), ("x_test", "y_test"), ("x_train", "y_train"))
    names = next((pair for pair in pairs if pair[0] in content), None)
    if names is None:
        raise InputError(f"{path} lacks x")
    return _of_arrays(content, *names, path)


def _of_arrays(content: Mapping[str, np.ndarray], name_x: str, name_y: str, path: Path) -> Inputs:
    x, y = content[name_x], None
    arrays.check_matrix(x, name_x, path)
    if name_y in content:
        y = arrays.decode_text(content[name_y], name_y, path)
        arrays.check_labels(y, len(x), name_x, name_y, path)
        if "names" in content:
            y = arrays.label_names(y, arrays.decode_text(content["names"], "names", path), path)
    return Inputs(_checked_floats(x, name_x, path), labels=y)


def _checked_floats(x: np.ndarray, name: str, path: Path) -> np.ndarray:
    """N,D finite numbers in single or double precision."""
    arrays.check_finite(x, name, path)
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32 if x.dtype == np.float16 else np.float64)
