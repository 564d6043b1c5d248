#!/bin/sh
# What the image tensorflow/serving starts: one model of the environment, and whatever flags follow.
exec tensorflow_model_server --port=8500 --rest_api_port=8501 --control_port=8502 \
  --model_name="${MODEL_NAME:-model}" --model_base_path="${MODEL_BASE_PATH:-/models}/${MODEL_NAME:-model}" "$@"
