# One image for every role: router, drafter, sub-drafter, target, and Ray's head and workers.
#   docker build -t flyserve .
#   docker run flyserve python -m router --help
FROM python:3.11-slim

ENV PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HUB_OFFLINE=1

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY protos protos
COPY fly fly
COPY services services
COPY router router
COPY orchestration orchestration
COPY flyserve flyserve
COPY benchmarks benchmarks
COPY demo demo

# The packages stay where they are read; only what they need and the command `flyserve` are installed.
RUN pip install --no-cache-dir --constraint constraints.txt --editable '.[engine,ray]' \
    && useradd --create-home --uid 10001 flyserve

USER 10001
EXPOSE 50051 8000
CMD ["flyserve", "--help"]
