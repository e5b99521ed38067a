"""Every method by name. To add one: a class in a file here, and a line in the table."""

from collections.abc import Iterable

from mtn.config import Config
from mtn.errors import InputError, closest
from mtn.methods.aanets import AANets
from mtn.methods.adaptation import Adaptation
from mtn.methods.anacp import AnaCP
from mtn.methods.analytic import NCM, SLDA, RanPAC, Ridge
from mtn.methods.base import Batch, Judged, LinearHead, Method, Needs, Stage, class_means
from mtn.methods.baselines import ER, KNN, FineTune, GDumb, Joint
from mtn.methods.bic import BiC
from mtn.methods.ccil import CCIL, CCILSD
from mtn.methods.der import DER
from mtn.methods.eeil import EEIL
from mtn.methods.feature_replay import FeatureReplay
from mtn.methods.fecam import FeCAM
from mtn.methods.fetril import FeTrIL
from mtn.methods.gem import AGEM, GEM
from mtn.methods.icarl import ICaRL
from mtn.methods.il2m import IL2M
from mtn.methods.learned import Learned
from mtn.methods.lucir import LUCIR, LUCIRBalanced, LUCIRFree
from mtn.methods.lwf import LwF
from mtn.methods.matching import NNN, Matching, QueryExpansion
from mtn.methods.mtn import MTN, MTNUnlocked
from mtn.methods.podnet import PODNet
from mtn.methods.practical import Practical
from mtn.methods.random_features import ACIL, KLDA, LoRanPAC, RanDumb
from mtn.methods.ssil import SSIL
from mtn.methods.tabr import TabR
from mtn.methods.tip_adapter import TipAdapter
from mtn.methods.wa import WA
from mtn.storage.recorded import find_subclass

METHODS: dict[str, type[Method]] = {
    "mtn": MTN,
    "mtn-unlocked": MTNUnlocked,
    "ssil": SSIL,
    "ccil": CCIL,
    "ccil-sd": CCILSD,
    "podnet": PODNet,
    "lucir": LUCIR,
    "lucir-free": LUCIRFree,
    "lucir-balanced": LUCIRBalanced,
    "bic": BiC,
    "icarl": ICaRL,
    "knn": KNN,
    "ncm": NCM,
    "slda": SLDA,
    "ridge": Ridge,
    "ranpac": RanPAC,
    "er": ER,
    "gdumb": GDumb,
    "lwf": LwF,
    "finetune": FineTune,
    "joint": Joint,
    "practical": Practical,
    "anacp": AnaCP,
    "klda": KLDA,
    "fecam": FeCAM,
    "fetril": FeTrIL,
    "loranpac": LoRanPAC,
    "acil": ACIL,
    "randumb": RanDumb,
    "tip-adapter": TipAdapter,
    "wa": WA,
    "il2m": IL2M,
    "eeil": EEIL,
    "agem": AGEM,
    "gem": GEM,
    "matching": Matching,
    "nnn": NNN,
    "query-expansion": QueryExpansion,
    "tabr": TabR,
    "feature-replay": FeatureReplay,
    "adaptation": Adaptation,
    "der": DER,
    "aanets": AANets,
}

__all__ = [
    "METHODS",
    "Batch",
    "Judged",
    "LinearHead",
    "Method",
    "Needs",
    "Stage",
    "check",
    "class_means",
    "find",
    "make",
    "runnable",
]


def find(name: str, *, import_modules: bool = True) -> type[Method]:
    """The class called `name` in the table, or the user's own, named package.module:Class.

    Without `import_modules` the user's own must have been imported already: nothing is run because a file says so.
    """
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        raise InputError(f"no method {name!r}: {closest(name, METHODS)} (one of your own: package.module:Class)")
    return find_subclass(name, Method, "method", import_modules=import_modules)


def check(config: Config) -> None:
    """Refuse a method that does not exist, images where it takes vectors alone, or a loss that is not its own."""
    name, loss = config.method.name, config.train.loss
    losses = find(name).losses
    if config.images.side is not None and find(name).needs.backbone == "none":
        raise InputError(f"method {name!r} is for frozen features: leave out images.side, and give vectors")
    if loss is not None and loss not in losses:
        takes = f"takes {', '.join(losses)}" if losses else "has no loss to choose"
        raise InputError(f"train.loss = {loss!r}: method {name!r} {takes}")


def runnable(configs: Iterable[Config]) -> list[Config]:
    """Those with a row of their own: on images no method for vectors alone, on vectors none that is another there."""

    def is_one(config: Config) -> bool:
        needs = find(config.method.name).needs
        return not needs.images if config.images.side is None else needs.backbone != "none"

    return list(filter(is_one, configs))


def make(dimension: int, config: Config) -> Method:
    """The method that a configuration names, new; with images, behind a backbone."""
    check(config)
    method = find(config.method.name)
    if config.images.side is None:
        return method(dimension, config)
    return Learned(method, find(config.method.features) if method.needs.backbone == "borrowed" else None, config)
