"""The entry point of `mtn` and `python -m mtn`."""

import os

# Threads that wait sleep instead of spinning: on a machine that does other work too, small steps run up to 40 times
# faster. Read once, when torch is loaded: hence here.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def main() -> None:
    from mtn import cli

    cli.main()


if __name__ == "__main__":
    main()
