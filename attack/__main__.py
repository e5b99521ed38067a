"""`python -m attack`: run the campaigns, print one table; exit code 1 if anything failed."""

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import ModuleType

from attack import damage, hostile, kills, load
from attack.campaign import Campaign, table

CAMPAIGNS: tuple[ModuleType, ...] = (kills, damage, hostile, load)
MINUTES = 60.0
"""Of all campaigns together, at the most."""


def main() -> int:
    """Run what the arguments ask for."""
    arguments = _arguments()
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    print(f"seed {seed}, share {arguments.share:g}", flush=True)
    failures = Path(arguments.failures).resolve()
    shutil.rmtree(failures, ignore_errors=True)
    campaigns: list[Campaign] = []
    with tempfile.TemporaryDirectory(prefix="mtn-attack-") as scratch:
        for module in CAMPAIGNS:
            if arguments.only not in (None, module.NAME):
                continue
            folder = Path(scratch) / module.NAME
            folder.mkdir()
            tries = max(1, round(module.TRIES * arguments.share))
            seconds = 60 * module.MINUTES * arguments.minutes / MINUTES
            campaign = Campaign(module.NAME, tries, seconds, seed, failures, folder, arguments.number)
            os.chdir(folder)
            try:
                module.attack(campaign)
            except Exception as error:
                campaign.fail(
                    -1, f"the campaign broke off: {error!r}", {"traceback.txt": traceback.format_exc().encode()}
                )
            campaign.ended = time.monotonic()
            campaigns.append(campaign)
            print(f"{campaign.name}: {campaign.done} tries, {len(campaign.failures)} failures", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
        os.chdir(failures.parent if failures.parent.is_dir() else "/")
    for campaign in campaigns:
        for line in campaign.report():
            print(line)
    print("\n" + table(campaigns))
    if any(campaign.failures for campaign in campaigns):
        print(f"\nwhat was sent is in {failures}")
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m attack", description=__doc__)
    names = [module.NAME for module in CAMPAIGNS]
    parser.add_argument("--only", choices=names, help="run this campaign alone")
    parser.add_argument("--share", type=float, default=1.0, help="of all tries, for example 0.02")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all campaigns, at the most 60")
    parser.add_argument("--seed", type=int, help="of the random numbers; printed, so that a failure can be repeated")
    parser.add_argument("--try", dest="number", type=int, metavar="NUMBER", help="repeat this try of --only alone")
    parser.add_argument("--failures", default="runs/attack", help="folder for what made something fail")
    arguments = parser.parse_args()
    if not 0 < arguments.share <= 1 or not 0 < arguments.minutes <= MINUTES:
        parser.error(f"--share must be above 0 and at most 1, --minutes above 0 and at most {MINUTES:.0f}")
    if arguments.number is not None and arguments.only is None:
        parser.error("--try needs --only")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
