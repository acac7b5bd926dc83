# syntax=docker/dockerfile:1
# Functions on CPU, and, for trials, the service with its functions in one pod. From the root:
#   docker build -f deploy/images/functions-cpu.Dockerfile -t rlhfless/functions-cpu:0.1.0 .
ARG PYTHON=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${PYTHON} AS wheel
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip pip wheel --no-deps --wheel-dir /wheels .

FROM ${PYTHON} AS environment
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src
# The largest layer, and the one that changes least.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --index-url "${TORCH_INDEX}" "$(grep '^torch==' constraints.txt)"
COPY deploy/images/constraints.txt images.txt
COPY pyproject.toml deploy/images/requirements.py ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python requirements.py pyproject.toml functions data stores examples ray > wanted.txt \
    && python requirements.py --constraints constraints.txt images.txt > limits.txt \
    && pip install -c limits.txt -r wanted.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps /wheels/*.whl

FROM ${PYTHON}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="rlhfless functions, CPU" \
      org.opencontainers.image.description="Rollout, reward, reference and training on CPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 rlhfless \
    && useradd --uid 10001 --gid 10001 --home-dir /work --no-create-home rlhfless \
    && install -d -o 10001 -g 10001 /work /data
COPY --from=environment /opt/venv /opt/venv
COPY examples /opt/rlhfless/examples
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_DISABLE_TELEMETRY=1 \
    TOKENIZERS_PARALLELISM=false
USER 10001:10001
WORKDIR /work
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["python", "-m", "functions.host"]
CMD ["--function", "rollout", "--port", "8000", "--workdir", "/work"]
