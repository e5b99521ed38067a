"""Pack the results of a report's runs into one file, to publish the report without the folders of its runs.

python scripts/pack_results.py runs/clinc150_minilm-reproduce

`mtn reproduce --out` with that folder, or with a copy that has no cells/, repeats none of the packed runs.
"""

import argparse
from pathlib import Path

from mtn.experiments.paper.packing import pack_results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path)
    for report in parser.parse_args().reports:
        path = pack_results(report)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
