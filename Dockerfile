# One image for trainer, inferencer and operator; the command chooses. Any base with Python 3.10 to 3.13 and its venv
# module will do. Nothing here is compiled. The target tf-serving is the same image, started as tensorflow/serving is.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE} AS paramsync

# The slow layer: it is made again only when the locked requirements change, never when the code does. What nothing uses
# once it is installed goes at once: headers to build ops with, a parser of C++, and the installer.
ARG REQUIREMENTS=requirements.lock
COPY ${REQUIREMENTS} /opt/requirements.lock
RUN python3 -m venv /opt/venv \
 && /opt/venv/bin/python3 -m pip install --no-cache-dir --disable-pip-version-check --only-binary :all: \
      --require-hashes --requirement /opt/requirements.lock \
 && cd /opt/venv/lib/python3*/site-packages \
 && rm -rf tensorflow/include tensorflow/xla_aot_runtime_src clang pip pip-*.dist-info /opt/venv/bin/pip*

# These belong to the user before volumes are mounted there: an empty named volume takes over this owner.
RUN groupadd --gid 10001 paramsync \
 && useradd --uid 10001 --gid paramsync --no-create-home --home-dir /tmp --shell /usr/sbin/nologin paramsync \
 && install --directory --owner paramsync --group paramsync --mode 0750 /store /state /training

# The packages are pure Python: they run from where they are copied, and no build tool has to be fetched. Bytecode is
# made once, here, because the user who runs it may not write beside it; so is what says which release this is.
COPY paramsync /app/paramsync
COPY trainer /app/trainer
COPY inferencer /app/inferencer
COPY deploy/healthcheck.py /app/healthcheck.py
COPY deploy/tf_serving_entrypoint.sh /usr/bin/tf_serving_entrypoint.sh
COPY pyproject.toml /app/pyproject.toml
RUN printf '#!/bin/sh\nexec python3 -m paramsync.cli "$@"\n' > /opt/venv/bin/paramsync \
 && printf '#!/bin/sh\nexec python3 -m inferencer.program.tf_serving "$@"\n' > /opt/venv/bin/tensorflow_model_server \
 && version=$(sed -n 's/^version = "\(.*\)"$/\1/p' /app/pyproject.toml) \
 && mkdir "/app/paramsync-$version.dist-info" \
 && printf 'Metadata-Version: 2.1\nName: paramsync\nVersion: %s\n' "$version" > "/app/paramsync-$version.dist-info/METADATA" \
 && chmod 0755 /opt/venv/bin/paramsync /opt/venv/bin/tensorflow_model_server /usr/bin/tf_serving_entrypoint.sh \
 && /opt/venv/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /app

ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
WORKDIR /app
USER 10001:10001
STOPSIGNAL SIGTERM
# The inferencer: predictions by gRPC, by HTTP, and control. The trainer: control.
EXPOSE 8500 8501 8502 8503 8504
CMD ["paramsync", "--help"]

FROM paramsync AS tf-serving
ENV MODEL_NAME=model \
    MODEL_BASE_PATH=/models
ENTRYPOINT ["/usr/bin/tf_serving_entrypoint.sh"]
CMD []

FROM paramsync
