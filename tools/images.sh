#!/usr/bin/env bash
# Build the container images with the engine that works here: tools/images.sh [slim|cpu|cuda|vllm]...
# REPOSITORY (flyserve) and TAG (the version) name them; cpu has the tag itself, the others TAG-slim and so on.
# BASE is the base image, best with its digest; TORCH_INDEX is the package index of torch for cpu.
set -euo pipefail
cd "$(dirname "$0")/.."

engine=""
found=()
for name in docker podman; do
  if ! command -v "$name" >/dev/null; then
    found+=("$name is not installed")
  elif ! "$name" info >/dev/null 2>&1; then
    found+=("$name is installed, but '$name info' fails: is its service running?")
  else
    engine=$name
    break
  fi
done
if [ -z "$engine" ]; then
  echo "error: no image can be built here: ${found[0]}; ${found[1]}" >&2
  exit 1
fi

version=$(sed -n 's/^VERSION = "\(.*\)"$/\1/p' flyserve/core/version.py)
name=${REPOSITORY:-flyserve}:${TAG:-$version}
[ $# -gt 0 ] || set -- slim cpu cuda vllm
for device in "$@"; do
  case $device in
    slim | cuda | vllm) tag=$name-$device ;;
    cpu) tag=$name ;;
    *)
      echo "error: $device: must be slim, cpu, cuda or vllm" >&2
      exit 2
      ;;
  esac
  arguments=(--tag "$tag" --build-arg "DEVICE=$device")
  [ -z "${BASE:-}" ] || arguments+=(--build-arg "BASE=$BASE")
  [ "$device" != cpu ] || [ -z "${TORCH_INDEX:-}" ] || arguments+=(--build-arg "TORCH_INDEX=$TORCH_INDEX")
  "$engine" build "${arguments[@]}" .
done
