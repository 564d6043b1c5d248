"""python -m inferencer.program.tf_serving: the inferencer, started with the flags of tensorflow_model_server."""

from __future__ import annotations

from ..main import end, main

if __name__ == "__main__":
    end(main(parsing=f"{__package__}.flags"))
