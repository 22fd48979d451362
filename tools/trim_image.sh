#!/bin/sh
# Remove the parts of installed packages that no process of an image reads: tools/trim_image.sh slim|cpu.
set -eu
cd "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

find . -type d -name tests -prune -exec rm -rf {} +
case $1 in
  slim)
    # Models without torch cannot be computed: a router takes their configurations and tokenizers.
    find transformers/models -mindepth 2 -type f ! -path '*/auto/*' \
      ! -name 'tokenization*' ! -name 'configuration*' ! -name '__init__*' ! -name '*normalizer*' -delete
    ;;
  cpu)
    # Headers and tests of torch's C++ interface; of Ray, Java, C++ and the libraries for data and training.
    rm -rf torch/include torch/test torch/share
    rm -rf ray/jars ray/cpp ray/rllib ray/llm ray/data ray/train ray/tune
    # Sources that others are generated from, and converters of checkpoints.
    find transformers/models \( -name 'modular_*' -o -name 'convert_*' \) -delete
    find torch/bin -type f ! -name torch_shm_manager -delete
    find ray/dashboard -name '*.map' -delete
    ;;
esac
