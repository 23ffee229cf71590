#!/usr/bin/env bash
# Makes sure the system packages for a purpose are there: `build` or `bench`.
# As root on Debian it installs what is missing; otherwise it names what to install.
set -euo pipefail

purpose=${1:?usage: ensure_packages.sh build|bench}
python=${PYTHON:-python3}
missing=()

need() {  # need PACKAGE COMMAND...: the package is missing if the command fails
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}

has_python_header() {
  "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}

has_gtest() {
  echo '#include <gtest/gtest.h>' | c++ -std=c++20 -fsyntax-only -x c++ -
}

has_archive() {  # a static library that the linker finds
  [[ $(c++ -print-file-name="$1") == /* ]]
}

case $purpose in
  build)
    need python3 command -v "$python"
    need python3-venv "$python" -c 'import ensurepip, venv'
    need python3-dev has_python_header
    need g++ command -v c++
    need libgtest-dev has_gtest
    need llvm-19-dev command -v llvm-config-19
    need zlib1g-dev has_archive libz.a
    need libzstd-dev has_archive libzstd.a
    ;;
  bench)
    need valgrind command -v valgrind
    ;;
  *)
    echo "unknown purpose: $purpose" >&2
    exit 2
    ;;
esac

can_install() { [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; }

# Only makes rebuilding faster, so its absence is never an error.
optional=()
if [[ $purpose == build ]] && can_install && ! command -v ccache >/dev/null; then
  optional=(ccache)
fi

if ((${#missing[@]} == 0 && ${#optional[@]} == 0)); then
  exit 0
fi
if ! can_install; then
  echo "These packages are missing and installing them needs root: ${missing[*]}" >&2
  echo "On Debian or Ubuntu: sudo apt-get install ${missing[*]}" >&2
  exit 1
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
if ((${#missing[@]})); then
  apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi
if ((${#optional[@]})); then
  apt-get install -y -qq --no-install-recommends "${optional[@]}" || true
fi
