"""Teach, save, load, ask, explain, add a class, forget one: python examples/quickstart.py"""

import tempfile

from sklearn.datasets import load_digits

from mtn import MTNClassifier

X, y = load_digits(return_X_y=True)
X = X - X.mean(0)  # neighbours are found by cosine
train, test = slice(0, None, 2), slice(1, None, 2)
first = y[train] < 5

classifier = MTNClassifier()
classifier.partial_fit(X[train][first], y[train][first])  # five classes
classifier.partial_fit(X[train][~first], y[train][~first])  # five more, which nobody announced
print("accuracy", round(classifier.score(X[test], y[test]), 3))

with tempfile.TemporaryDirectory() as folder:
    classifier.save(folder)
    classifier = MTNClassifier.load(folder)

(evidence,) = classifier.explain(X[test][:1])
print("answer", evidence.prediction, "because of", [near.label for near in evidence.neighbours])
classifier.forget(3)
print("known now", classifier.classes_, "unknown is", classifier.predict(X[test][:5], unknown=-1))
