"""Brings PyTorch's own test files (of 2.6) into a folder, from Debian's source package of PyTorch.

The archive comes from the Debian mirror that apt is configured for, through apt itself but with
lists and sources of its own: it needs no root and changes nothing on the system. It is checked
against its digest, and only the folder of tests is unpacked.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

RELEASE = "trixie"  # the Debian release whose PyTorch is 2.6
PACKAGE = "pytorch"
ARCHIVE = "pytorch_2.6.0+dfsg.orig.tar.xz"
SHA256 = "099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def mirrors() -> list[str]:
    """The addresses of Debian that apt is configured for, the main archive first."""
    asked = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)",
         "Identifier: Packages"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [line.split() for line in asked.stdout.splitlines()]
    found = [row[0] for row in rows if len(row) == 3 and row[2] == "main"]
    return sorted(set(found), key=lambda uri: ("security" in uri, found.index(uri)))


def download(mirror: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        for part in ("lists/partial", "cache/archives/partial", "download"):
            (folder / part).mkdir(parents=True)
        signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
        (folder / "sources.list").write_text(f"deb-src {signed}{mirror} {RELEASE} main\n")
        apt = [
            "apt-get", "--quiet=2",
            "-o", f"Dir::Etc::SourceList={folder}/sources.list",
            "-o", "Dir::Etc::SourceParts=/dev/null",
            "-o", f"Dir::State::Lists={folder}/lists",
            "-o", f"Dir::Cache={folder}/cache",
            "-o", "APT::Sandbox::User=root",
            "-o", "APT::Update::Error-Mode=any",
        ]  # fmt: skip
        subprocess.run([*apt, "update"], check=True, stdout=sys.stderr)
        subprocess.run(
            [*apt, "source", "--download-only", "--only-source", PACKAGE],
            check=True, stdout=sys.stderr, cwd=folder / "download",
        )  # fmt: skip
        (folder / "download" / ARCHIVE).replace(target)


def archive(folder: Path) -> Path:
    path = folder / ARCHIVE
    if not path.exists():
        tried = []
        try:
            for mirror in mirrors():
                try:
                    download(mirror, path)
                    break
                except (OSError, subprocess.CalledProcessError) as error:
                    tried.append(str(error))
        except (OSError, subprocess.CalledProcessError) as error:  # no apt here
            tried.append(str(error))
        if not path.exists():
            raise SystemExit(
                "fetch_upstream_tests: apt did not bring Debian's sources of PyTorch 2.6.\n"
                + "\n".join(tried)
                + f"\nPut {ARCHIVE} of Debian {RELEASE} into {folder} and run this again."
            )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        path.unlink()
        raise SystemExit(f"fetch_upstream_tests: {ARCHIVE} has another digest: {digest}")
    return path


def unpack(path: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as name, tarfile.open(path) as tar:
        wanted = [
            member
            for member in tar
            if member.name.partition("/")[2].startswith("test/") and member.isfile()
        ]
        tar.extractall(name, members=wanted, filter="data")
        (found,) = Path(name).iterdir()
        shutil.move(found / "test", target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="FOLDER/test is made, unless it is there")
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "test").exists():
        unpack(archive(folder), folder / "test")


if __name__ == "__main__":
    main()
