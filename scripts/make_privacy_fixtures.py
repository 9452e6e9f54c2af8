"""Writes crates/core/tests/fixtures/privacy.csv: epsilons of Google's accountant, which those of the program must equal.

    python scripts/make_privacy_fixtures.py        # with dp-accounting 0.6.0
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


# At fractional orders, dp-accounting adds up absolute values of a series that has both signs, an upper bound. At whole
# orders the sum is exact.
WHOLE_ORDERS = [*range(2, 64), 128, 256, 512, 1024]


def epsilon(accountant: dp_accounting.PrivacyAccountant, rate: float, noise: float, rounds: int, delta: float) -> float:
    release = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(dp_accounting.SelfComposedDpEvent(release, rounds))
    return float(accountant.get_epsilon(delta))


def main() -> None:
    rows = ["rate,noise,rounds,delta,epsilon,at whole orders"]
    for case in itertools.product(RATES, NOISES, ROUNDS, DELTAS):
        found = epsilon(rdp.RdpAccountant(), *case)
        # Of no interest: no privacy at all, or nothing published.
        if 0.01 <= found <= 20:
            whole = epsilon(rdp.RdpAccountant(WHOLE_ORDERS), *case)
            rows.append(",".join(f"{number:.6g}" for number in [*case, found, whole]))
    OUT.write_text("\n".join(rows) + "\n")
    print(f"{len(rows) - 1} rows")


if __name__ == "__main__":
    main()
