# The leader. The context is the repository's root: docker build -f deploy/leader.Dockerfile .
ARG BASE=python:3.11-slim-bookworm

# hadolint ignore=DL3006
FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md ./
COPY common common
COPY leader leader
COPY worker worker
COPY engine engine
COPY cli cli
RUN python -m venv /opt/blockyard && /opt/blockyard/bin/pip install --no-cache-dir .

# hadolint ignore=DL3006
FROM ${BASE}
RUN useradd --uid 7500 --no-create-home --shell /usr/sbin/nologin blockyard
COPY --from=build /opt/blockyard /opt/blockyard
ENV PATH=/opt/blockyard/bin:${PATH} \
    PYTHONUNBUFFERED=1

USER 7500:7500
# 7501: links from workers. 7500: HTTP API, /metrics, /healthz.
EXPOSE 7500 7501
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=15s --retries=6 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:7500/healthz', timeout=2)"]
ENTRYPOINT ["blockyard"]
CMD ["--help"]
