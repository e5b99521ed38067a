"""Attacks on mtn: kills, damaged files, hostile requests, load. Run by `make attack`, no part of the wheel."""

import os

# Before torch is loaded: processes are forked from one that has no threads, and sums round by the number of threads.
os.environ["OMP_NUM_THREADS"] = "1"
