"""The entry point of `mtn` and `python -m mtn`."""

import os

# Waiting threads sleep instead of spinning: where other programs use the cores too, small steps run up to 40 times
# faster. OpenMP reads this once, when torch is loaded, hence it is set here.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def main() -> None:
    """Run the command line."""
    from mtn.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
