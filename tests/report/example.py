"""Results in the shape that `excise demo` writes, with no two numbers alike."""

from typing import Any

ENDS = {  # retain and forget loss at the end of training
    "no_filter": (3.81, 4.12),
    "data_filter": (3.86, 6.03),
    "sgtm": (3.94, 8.71),
    "perfect_filter": (3.89, 9.17),
}
STARTS = {"no_filter": (6.42, 7.36), "data_filter": (6.23, 8.41), "sgtm": (6.57, 9.26), "perfect_filter": (6.31, 9.58)}
SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)


def example_results() -> dict[str, Any]:
    """A fresh copy, free to be changed."""
    return {
        "losses": {name: _losses(name) for name in ENDS},
        "claims": [
            {"name": "recovered by SGTM, at least", "value": 0.86, "bound": 0.8, "holds": True},
            {"name": "English loss of SGTM over no filter, at most", "value": 0.13, "bound": 0.15, "holds": True},
            {
                "name": "Spanish loss of SGTM before ablation over no filter, at most",
                "value": 0.67,
                "bound": 0.5,
                "holds": False,
            },
            {"name": "minutes on two cores, at most", "value": 2.61, "bound": 5, "holds": True},
        ],
        "curves": {name: _curve(name) for name in ENDS},
        "runs": {
            "no_filter": {"steps": 640, "tokens": 655_872, "seconds": 36.4, "parameters": 640_128},
            "data_filter": {"steps": 351, "tokens": 359_424, "seconds": 20.7, "parameters": 640_129},
            "sgtm": {"steps": 641, "tokens": 655_873, "seconds": 41.9, "parameters": 641_536},
            "perfect_filter": {"steps": 320, "tokens": 327_936, "seconds": 18.8, "parameters": 640_130},
        },
        "samples": [
            {
                "language": "english",
                "prompt": "One day, a little girl",
                "full": " named Lucy found a small key under the old tree. She showed it to her grandfather. “What does it open?” she asked. He smiled and took her hand.",
                "ablated": " named Lucy found a red ball under the old bed. She showed it to her mother. “Can we play with it?” she asked. Her mother smiled.",
            },
            {
                "language": "spanish",
                "prompt": "Un día, una niña pequeña",
                "full": " llamada Lucía encontró una llave pequeña debajo del árbol. Se la enseñó a su abuelo. —¿Qué abre? —preguntó. Él sonrió y le dio la mano.",
                "ablated": " the the , and was a ia o to a na . the on ía de ra el it la o o her .",
            },
        ],
        "recovered": 0.86,
        "configuration": {
            "excise": "0.1.0",
            "torch": "2.13.0",
            "seed": 17,
            "undiscovered_share": 0.1,
            "n_stories": 1000,
        },
    }


def _losses(name: str) -> dict[str, Any]:
    retain, forget = ENDS[name]
    module = name == "sgtm"
    return {
        "retain": {"before": retain + 0.02, "ablated": retain + (0.05 if module else 0.02), "calibrated": retain},
        "forget": {"before": 4.79 if module else forget + 0.31, "ablated": forget + 0.31, "calibrated": forget},
    }


def _curve(name: str) -> list[dict[str, float]]:
    (retain_start, forget_start), (retain, forget) = STARTS[name], ENDS[name]
    return [
        {
            "step": round(600 * share),
            "tokens": round(612_345 * share),
            "share": share,
            "retain": retain + (retain_start - retain) * _left(share),
            "forget": forget + (forget_start - forget) * _left(share),
        }
        for share in SHARES
    ]


def _left(share: float) -> float:
    """How much of the way is left: fast at first, then slow, nothing at the end."""
    return (1 - share) ** 2 / (1 + 2 * share)
