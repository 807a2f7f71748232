"""The noise of a trusted server from an untrusted one: a table, computed when asked for.

``python -m tools.headline`` prints it: for ε = 3, 5 and 10 the certified noise of every mechanism over that of a
trusted server's Gaussian with the same neighboring relation, adversary and bound. All sampled clients are honest, or
four fifths of them. Also the bits of a coordinate before and under secure aggregation, and what is published of the
distributed discrete Gaussian.
"""

from typing import Any

from rqm.core.search import calibrate

SCALES: dict[str, dict[str, Any]] = {
    "server, n = 1,000 of N = 10⁶, each user once": {
        "clients": 1000,
        "population": 10**6,
        "rounds": 500,
        "delta": 1e-6,
        "adversary": "server",
        "max_participations": 1,
    },
    "outsider, n = 100 of N = 3,400, T = 1,500": {
        "clients": 100,
        "population": 3400,
        "rounds": 1500,
        "delta": 1 / 3400,
        "adversary": "outsider",
        "max_participations": None,
    },
}
MECHANISMS: dict[str, tuple[Any, int]] = {
    "RQM, q = 0.42": ("rqm", 16),
    "1-bit rounding": ("rounding", 2),
    "PBM": ("pbm", 16),
}
DIM = 2**20
PUBLISHED = """
Distributed discrete Gaussian (Kairouz, Liu and Steinke 2021), as published for ε = 10: 1.054 times the noise of a
trusted server's Gaussian at 16 bits a coordinate under secure aggregation, 2.36 times at 12 bits."""


def rows() -> list[dict[str, Any]]:
    """All cells: replace-one, δ = 1/N, d = 2²⁰, K = 4."""
    found = []
    for scale, setting in SCALES.items():
        for epsilon in (3, 5, 10):
            for name, (mechanism, levels) in MECHANISMS.items():
                row: dict[str, Any] = {"scale": scale, "epsilon": epsilon, "mechanism": name}
                # Against the outsider the fraction of all users counts, and a round may hold fewer honest clients.
                is_outsider = setting["adversary"] == "outsider"
                some = {"honest_fraction": 0.8} if is_outsider else {"honest_clients": round(0.8 * setting["clients"])}
                for key, honest in (("all honest", {}), ("80 % honest", some)):
                    got: Any = calibrate(mechanism, epsilon=epsilon, levels=levels, dim=DIM, **honest, **setting)
                    row[key] = got.guarantee.noise_std_over_gaussian
                    row["bits"] = got.guarantee.bits_per_coordinate
                    row["under secure aggregation"] = got.guarantee.bits_under_secagg
                row["80 % honest, over √(1/.8)"] = row["80 % honest"] * 0.8**0.5
                found.append(row)
    return found


def table(found: list[dict[str, Any]]) -> str:
    """The rows as a table in Markdown."""
    titles = [title for title in found[0] if title != "scale"]
    lines = []
    for scale in dict.fromkeys(row["scale"] for row in found):
        lines += ["", f"**{scale}**", "", "| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
        for row in found:
            if row["scale"] == scale:
                cells = [f"{row[t]:.4f}" if isinstance(row[t], float) else str(row[t]) for t in titles]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(rows()))
    print(PUBLISHED)
