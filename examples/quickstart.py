"""Teach, save, load, ask, explain, forget a class, teach it again: python examples/quickstart.py"""

import tempfile

from sklearn.datasets import load_digits

from mtn import MTNClassifier, evaluate

X, y = load_digits(return_X_y=True)
X = X - X.mean(0)  # neighbours are found by cosine
X_train, y_train, X_test, y_test = X[::2], y[::2], X[1::2], y[1::2]
first = y_train < 5

classifier = MTNClassifier()
classifier.partial_fit(X_train[first], y_train[first])  # five classes
classifier.partial_fit(X_train[~first], y_train[~first])  # five more, which nobody announced
print("accuracy", round(classifier.score(X_test, y_test), 3))

with tempfile.TemporaryDirectory() as folder:
    classifier.save(folder)
    classifier = MTNClassifier.load(folder)

(evidence,) = classifier.explain(X_test[:1])
print("answer", evidence.prediction, "because of", [near.label for near in evidence.neighbours])

threes = y_train == 3
classifier.forget(3)
print("known now", classifier.classes_)
classifier.partial_fit(X_train[threes], y_train[threes])  # taught again, it is a new class

answers = classifier.predict(X_test[-10:])
print("answers", answers, "right", (answers == y_test[-10:]).sum(), "of 10")
found = evaluate(classifier, X_test, y_test)
worst = found.confusions[0]
print("accuracy", round(found.accuracy, 3), "most often", worst.label, "is taken for", worst.answer)
