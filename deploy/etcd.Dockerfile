# etcd from Debian's own package, so that the stack needs no image beyond the usual short names.
ARG BASE=debian:bookworm-slim
FROM ${BASE}

# A fixed user id, so that the data volume keeps its owner when the image is built anew.
RUN groupadd --gid 2379 etcd \
 && useradd --uid 2379 --gid etcd --no-create-home --home-dir /var/lib/etcd --shell /usr/sbin/nologin etcd \
 && apt-get update \
 && apt-get install -y --no-install-recommends etcd-server=3.4.23* etcd-client=3.4.23* \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -m 0700 -o etcd -g etcd /var/lib/etcd

ENV ETCDCTL_API=3 \
    ETCD_NAME=etcd \
    ETCD_DATA_DIR=/var/lib/etcd/default \
    ETCD_LISTEN_CLIENT_URLS=http://0.0.0.0:2379 \
    ETCD_ADVERTISE_CLIENT_URLS=http://etcd:2379 \
    ETCD_AUTO_COMPACTION_RETENTION=1

USER 2379:2379
VOLUME /var/lib/etcd
EXPOSE 2379
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=6 \
    CMD ["etcdctl", "--command-timeout=2s", "endpoint", "health"]
ENTRYPOINT ["etcd"]
