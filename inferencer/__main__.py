"""python -m inferencer: serves predictions from whatever is the newest published version."""

from __future__ import annotations

from .program.main import end, main

if __name__ == "__main__":
    end(main())
