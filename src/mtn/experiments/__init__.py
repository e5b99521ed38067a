"""Runs of a method through a stream of tasks, side by side, and what is reported of them."""
