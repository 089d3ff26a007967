"""A throw-away certificate authority for tests of TLS. Owns the files; needs the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """A throw-away certificate authority."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.ca, self._ca_key = folder / "ca.pem", folder / "ca.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", "/CN=test-ca", "-keyout", self._ca_key, "-out", self.ca),
        )

    def issue(self, name: str) -> tuple[Path, Path]:
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *("-CA", self.ca, "-CAkey", self._ca_key, "-keyout", key, "-out", cert),
        )
        return cert, key

    def settings(self, name: str, *, expired: bool = False) -> dict[str, str]:
        """Settings of a node that shows a certificate of this name to other nodes and to etcd."""
        return self.link_settings(name, expired=expired) | self.etcd_settings(name)

    def link_settings(self, name: str, *, expired: bool = False) -> dict[str, str]:
        """Of these, what other nodes see."""
        cert, key = self.issue_expired(name) if expired else self.issue(name)
        return {"tls_ca": str(self.ca), "tls_cert": str(cert), "tls_key": str(key), "insecure": "false"}

    def etcd_settings(self, name: str) -> dict[str, str]:
        """Of these, what etcd sees."""
        cert, key = self.issue(name)
        return {"etcd_ca": str(self.ca), "etcd_cert": str(cert), "etcd_key": str(key)}

    def issue_expired(self, name: str) -> tuple[Path, Path]:
        """A certificate that ended before it began, which openssl makes from a request alone."""
        cert, key = self._folder / f"{name}-expired.pem", self._folder / f"{name}-expired.key"
        request = self._folder / f"{name}.csr"
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", key, "-out", request),
        )
        _openssl(
            *("x509", "-req", "-in", request, "-days", "-1"),
            *("-CA", self.ca, "-CAkey", self._ca_key, "-CAcreateserial", "-out", cert),
        )
        return cert, key


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=30)
