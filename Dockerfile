# One image for trainer, inferencer and operator; the command chooses. Any base with Python 3.10 to 3.13 and its venv
# module will do. Nothing here is compiled, so there is one stage.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

# The slow layer: it is made again only when the locked requirements change, never when the code does.
ARG REQUIREMENTS=requirements.lock
COPY ${REQUIREMENTS} /opt/requirements.lock
RUN python3 -m venv /opt/venv \
 && /opt/venv/bin/python3 -m pip install --no-cache-dir --disable-pip-version-check --only-binary :all: \
      --require-hashes --requirement /opt/requirements.lock

# The store belongs to the user before a volume is mounted there: an empty named volume takes over this owner.
RUN groupadd --gid 10001 paramsync \
 && useradd --uid 10001 --gid paramsync --no-create-home --home-dir /tmp --shell /usr/sbin/nologin paramsync \
 && install --directory --owner paramsync --group paramsync --mode 0750 /store

# The packages are pure Python: they run from where they are copied, and no build tool has to be fetched. Bytecode is
# made once, here, because the user who runs it may not write beside it.
COPY paramsync /app/paramsync
COPY trainer /app/trainer
COPY inferencer /app/inferencer
COPY bench /app/bench
COPY deploy/healthcheck.py /app/healthcheck.py
RUN printf '#!/bin/sh\nexec python3 -m paramsync.cli "$@"\n' > /opt/venv/bin/paramsync \
 && chmod 0755 /opt/venv/bin/paramsync \
 && /opt/venv/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /app

ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
WORKDIR /app
USER 10001:10001
STOPSIGNAL SIGTERM
CMD ["paramsync", "--help"]
