# syntax=docker/dockerfile:1
# Functions on GPUs: vLLM's own image, with its torch and CUDA, and ours beside it. From the root:
#   docker build -f deploy/images/functions-gpu.Dockerfile -t rlhfless/functions-gpu:0.1.0 \
#     --build-arg VLLM_DIGEST=sha256:... .
# The digest is that of the release which docs/vllm.md was written with; print it with
#   docker buildx imagetools inspect docker.io/vllm/vllm-openai:v0.32.0
ARG PYTHON=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
ARG VLLM_DIGEST

FROM ${PYTHON} AS wheel
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip pip wheel --no-deps --wheel-dir /wheels .

FROM docker.io/vllm/vllm-openai:v0.32.0@${VLLM_DIGEST}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="rlhfless functions, GPU" \
      org.opencontainers.image.description="Rollout on vLLM, reward, reference and training on CUDA" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER root
WORKDIR /src
COPY pyproject.toml deploy/images/requirements.py ./
# What vLLM's image was tested with stays: its versions are the constraints, not ours.
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 requirements.py pyproject.toml functions stores ray > wanted.txt \
    && python3 -m pip list --format=freeze > there.txt \
    && python3 -m pip install -c there.txt -r wanted.txt \
    && ln -sf "$(command -v python3)" /usr/local/bin/python
RUN groupadd --gid 10001 rlhfless \
    && useradd --uid 10001 --gid 10001 --home-dir /work --no-create-home rlhfless \
    && install -d -o 10001 -g 10001 /work
COPY --from=wheel /wheels /wheels
RUN python3 -m pip install --no-deps /wheels/*.whl
COPY examples /opt/rlhfless/examples
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_DISABLE_TELEMETRY=1 \
    TOKENIZERS_PARALLELISM=false VLLM_NO_USAGE_STATS=1
USER 10001:10001
WORKDIR /work
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=300s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["python", "-m", "functions.host"]
CMD ["--function", "rollout", "--port", "8000", "--workdir", "/work", "--accelerator", "cuda"]
