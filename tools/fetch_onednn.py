"""Brings the sources of oneDNN, which torch-lazy compiles parts of, into a folder.

oneDNN publishes no archive of its sources in the Python package index; another package's archive
has them whole. It is taken from the index that pip uses, checked against its digest, and only
oneDNN's headers, sources and licence are unpacked. Nothing of it is run.
"""

import argparse
import hashlib
import html
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
from pathlib import Path

PROJECT = "intel-extension-for-transformers"
ARCHIVE = "intel_extension_for_transformers-1.4.2.tar.gz"
SHA256 = "946d74edec0dc55be1aa248f0f64d86aac558f782b5b33b4de47313681b48e0c"
INSIDE = "/third_party/oneDNN/"
WANTED = ("include/", "src/common/", "src/cpu/", "LICENSE", "THIRD-PARTY-PROGRAMS")
UNWANTED = ("src/cpu/aarch64/", "src/cpu/ppc64/", "src/cpu/rv64/", "src/cpu/s390x/")


def pip_setting(name: str) -> str:
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", f"global.{name}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return os.environ.get("PIP_" + name.upper().replace("-", "_"), asked.stdout.strip())


def index() -> str:
    configured = pip_setting("index-url")
    if configured:
        return configured
    from pip._internal.models.index import PyPI

    return PyPI.simple_url


def download(target: Path) -> None:
    from pip._vendor import requests  # knows about proxies, and names and passwords in addresses

    options = {"timeout": 60, "verify": pip_setting("cert") or True}
    page_url = f"{index().rstrip('/')}/{PROJECT}/"
    page = requests.get(page_url, **options)
    page.raise_for_status()
    links = re.findall(r'href="([^"]+)"', page.text)
    found = [html.unescape(link) for link in links if f"/{ARCHIVE}" in link]
    if not found:
        raise SystemExit(f"fetch_onednn: the package index has no {ARCHIVE}")
    url = urllib.parse.urljoin(page_url, found[0])
    with requests.get(url, stream=True, **options) as source, target.open("wb") as file:
        source.raise_for_status()
        for block in source.iter_content(1 << 20):
            file.write(block)


def unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            _, inside, name = member.name.partition(INSIDE)
            if (
                not inside
                or not member.isfile()
                or not name.startswith(WANTED)
                or name.startswith(UNWANTED)
                or ".." in name
            ):
                continue
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with tar.extractfile(member) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the sources go; it must not be there yet")
    parser.add_argument("--archive", type=Path, help=f"a copy of {ARCHIVE} that is here already")
    options = parser.parse_args()
    if options.folder.exists():
        raise SystemExit(f"fetch_onednn: {options.folder} is there already")
    options.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder.parent) as temporary:
        archive = options.archive
        if not archive:
            archive = Path(temporary) / ARCHIVE
            try:
                download(archive)
            except OSError as error:
                raise SystemExit(f"fetch_onednn: the package index: {error}") from error
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != SHA256:
            raise SystemExit(f"fetch_onednn: {archive.name} has the digest {digest}, not {SHA256}")
        unpacked = Path(temporary) / "oneDNN"
        unpack(archive, unpacked)
        unpacked.rename(options.folder)  # whole or not at all


if __name__ == "__main__":
    main()
