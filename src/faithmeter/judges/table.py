"""The table of judges. To add one, write a file with its row and add a line here."""

from collections.abc import Mapping
from types import MappingProxyType

from faithmeter.judges.adversarial import ADVERSARIAL
from faithmeter.judges.drift import DRIFT
from faithmeter.judges.erasure import ERASURE
from faithmeter.judges.f_fidelity import F_FIDELITY
from faithmeter.judges.fidelity import FIDELITY, FIDELITY_ATTACKED
from faithmeter.judges.insertion import INSERTION
from faithmeter.judges.judge import Judge
from faithmeter.judges.known_token import KNOWN_TOKEN
from faithmeter.judges.mosaic import MOSAIC
from faithmeter.judges.naopc import NAOPC
from faithmeter.judges.other_models import OTHER_SEED, RANDOM_WEIGHTS
from faithmeter.judges.plausibility import PLAUSIBILITY
from faithmeter.judges.randomisation import RANDOMISATION
from faithmeter.judges.soft import SOFT
from faithmeter.judges.sparsity import SPARSITY
from faithmeter.judges.token_change import TOKEN_CHANGE

_TABLE = (
    ERASURE,
    INSERTION,
    NAOPC,
    SOFT,
    F_FIDELITY,
    FIDELITY,
    FIDELITY_ATTACKED,
    SPARSITY,
    DRIFT,
    RANDOMISATION,
    RANDOM_WEIGHTS,
    OTHER_SEED,
    TOKEN_CHANGE,
    ADVERSARIAL,
    KNOWN_TOKEN,
    MOSAIC,
    PLAUSIBILITY,
)
JUDGES: Mapping[str, Judge] = MappingProxyType({judge.name: judge for judge in _TABLE})
ON_REQUEST = tuple(judge.name for judge in _TABLE if judge.on_request)
