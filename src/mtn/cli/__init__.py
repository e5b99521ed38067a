"""The commands. What they need is imported when they run, so that `mtn --help` loads neither torch nor matplotlib."""
