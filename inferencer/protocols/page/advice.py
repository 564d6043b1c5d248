"""Advice for a version in quarantine, chosen by the reason. docs/troubleshooting.md has the same texts."""

from __future__ import annotations

import re

_ADVICE = (
    (
        "found NaN or infinity",
        "Training diverged: mend the training step, or go back to an earlier state of it. The next finite version"
        " serves by itself.",
    ),
    ("is not trusted", "It is unsigned, of another key, or forged: run paramsync verify STORE --trust KEYFILE."),
    (
        "--allow-op",
        "The graph does more than compute: look at it with paramsync graph show STORE, and give --allow-op NAME only if"
        " you trust who made it.",
    ),
    (
        "^parameters of version",
        "The checkpoint and the graph name variables otherwise: publish the graph of the object that is saved.",
    ),
    (
        "^workers (hung|crashed)",
        "The graph ends or blocks the process that computes it: mend the model and publish it again.",
    ),
    (
        "^/.*: expected .*, found ",
        "Its files were changed after they were published: run paramsync verify STORE, look after the disk, and let"
        " only the publisher write there. The next good version serves by itself.",
    ),
)
_OTHERWISE = "Mend what the reason names, then press Sync now: it tries the version once more."


def advice(reason: str) -> str:
    return next((text for pattern, text in _ADVICE if re.search(pattern, reason)), _OTHERWISE)


TEXTS = (*(text for _, text in _ADVICE), _OTHERWISE)
