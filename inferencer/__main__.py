"""python -m inferencer: serves predictions from the newest published version of each model."""

from __future__ import annotations

from .program.main import end, main

if __name__ == "__main__":
    end(main())
