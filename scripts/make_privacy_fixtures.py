"""Writes crates/core/tests/fixtures/privacy.csv: epsilons of Google's accountant, which those of the program must equal.

    python -m venv accounting && accounting/bin/pip install dp-accounting==0.6.0
    accounting/bin/python scripts/make_privacy_fixtures.py
"""

import itertools
import pathlib

import dp_accounting
from dp_accounting import rdp

RATES = [0.001, 0.01, 0.1, 0.5, 1.0]
NOISES = [0.5, 0.8, 1.0, 2.0, 5.0, 20.0]
ROUNDS = [1, 10, 100, 1000, 10000]
DELTAS = [1e-5, 1e-8]

OUT = pathlib.Path(__file__).parent.parent / "crates/core/tests/fixtures/privacy.csv"


def epsilon(rate: float, noise: float, rounds: int, delta: float) -> float:
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    release = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(dp_accounting.SelfComposedDpEvent(release, rounds))
    return float(accountant.get_epsilon(delta))


def main() -> None:
    rows = ["rate,noise,rounds,delta,epsilon"]
    for rate, noise, rounds, delta in itertools.product(RATES, NOISES, ROUNDS, DELTAS):
        found = epsilon(rate, noise, rounds, delta)
        # Of no interest: no privacy at all, or nothing published.
        if 0.01 <= found <= 1000:
            rows.append(f"{rate},{noise},{rounds},{delta},{found:.6g}")
    OUT.write_text("\n".join(rows) + "\n")
    print(f"{len(rows) - 1} rows")


if __name__ == "__main__":
    main()
