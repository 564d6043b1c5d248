"""What stands at the end of each command's help: examples, and exit codes."""

from __future__ import annotations

ALL = """\
examples:
  paramsync up                          see it work, on this machine
  paramsync status                      what is trained, published and served
  paramsync status --watch              the same, whenever it changes
  paramsync open                        its page, in a browser
  paramsync top                         rates, latencies, versions and workers
  paramsync sync digits                 serve the newest version now
  paramsync sync digits --fresh         have the trainer publish first
  paramsync rollback digits             serve the version before, and stay there
  paramsync predict digits --input image=@held_out.npz:x --rows 3
  paramsync versions /dev/shm/digits    what is in a store, and who uses it
  paramsync diff /dev/shm/digits        what the newest version changed
  paramsync verify /dev/shm/digits      whether it is what was published
  paramsync graph show /dev/shm/digits  what its graph takes and gives
  paramsync train --store /dev/shm/digits --job MODULE:FUNCTION
  paramsync serve --model digits=/dev/shm/digits
  paramsync serve --tf-serving --port=8500 --model_base_path=/models/digits
"""

EXIT_CODES = "exit codes: 0 done, 1 it did not happen, 2 wrong arguments, 130 Ctrl-C"

OF_COMMANDS = {
    "up": """\
examples:
  paramsync up
  paramsync up --seconds 20 --json        what happened, as one object
  paramsync up --port 0 --rest-port 0 --control-port 0 --trainer-port 0
""",
    "status": """\
examples:
  paramsync status                        of all models
  paramsync status digits --watch         again whenever it changes
  paramsync status --server 10.0.0.1:8502 --server 10.0.0.2:8502
  PARAMSYNC_SERVER=10.0.0.1:8502,10.0.0.2:8502 paramsync status
  paramsync status --json | jq '.servers[].models[].serving.number'
""",
    "open": """\
examples:
  paramsync open
  paramsync open --http 10.0.0.1:8501
""",
    "sync": """\
examples:
  paramsync sync digits                   the newest version, now
  paramsync sync digits --fresh           the trainer publishes first
  paramsync sync digits --version 420
  paramsync sync --all --timeout 60       every model of every server
""",
    "top": """\
examples:
  paramsync top
  paramsync top digits --seconds 10 --json | jq '.models[].p99_seconds'
""",
    "watch": """\
examples:
  paramsync watch digits
  paramsync watch --json | jq 'select(.kind == "quarantined")'
""",
    "pin": """\
examples:
  paramsync pin digits 420                until `paramsync unpin digits`
""",
    "unpin": """\
examples:
  paramsync unpin digits
""",
    "rollback": """\
examples:
  paramsync rollback digits               until `paramsync unpin digits`
  paramsync rollback digits --dry-run     which version that would be
""",
    "label": """\
examples:
  paramsync label digits canary 420       requests may ask for canary
""",
    "unlabel": """\
examples:
  paramsync unlabel digits canary
""",
    "predict": """\
examples:
  paramsync predict digits --input image=@held_out.npz:x --rows 3
  paramsync predict mlp --input 'x=[[1, 2, 3, 4]]' --server 10.0.0.1:8500
""",
    "versions": """\
examples:
  paramsync versions /dev/shm/digits
""",
    "diff": """\
examples:
  paramsync diff /dev/shm/digits          the newest version and the one before
  paramsync diff /dev/shm/digits 400 420 --top 10
""",
    "verify": """\
examples:
  paramsync verify /dev/shm/digits        the newest version
  paramsync verify /dev/shm/digits 420
  paramsync verify /dev/shm/digits --all
  paramsync verify /dev/shm/digits --trust digits.pub
""",
    "keys": """\
examples:
  paramsync keys new digits      digits.key to sign with, digits.pub to trust
""",
    "new": """\
examples:
  paramsync keys new digits      digits.key to sign with, digits.pub to trust
""",
    "completion": """\
examples:
  source <(paramsync completion bash)     in ~/.bashrc
  eval "$(paramsync completion zsh)"      in ~/.zshrc, after compinit
  paramsync completion fish > ~/.config/fish/completions/paramsync.fish
""",
    "graph": """\
examples:
  paramsync graph show /dev/shm/digits
  paramsync graph tensorboard saved_model/ logs
  paramsync graph publish models.digits:build /dev/shm/digits
""",
    "show": """\
examples:
  paramsync graph show /dev/shm/digits
  paramsync graph show saved_model/
""",
    "tensorboard": """\
examples:
  paramsync graph tensorboard /dev/shm/digits logs
""",
    "publish": """\
examples:
  paramsync graph publish models.digits:build /dev/shm/digits
""",
}
