# docker build -t detrain .
# docker run --init -v "$PWD:/work" detrain run train.py
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
ARG TORCH=torch
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir ${TORCH} numpy && pip install --no-cache-dir /wheels/*.whl && rm -r /wheels
WORKDIR /work
# The run directory lies in /work/.detrain, so it outlives the container if /work does.
ENTRYPOINT ["detrain"]
