# docker build -t foldwise . && docker run --rm foldwise plan --model mixtral-8x7b --system h100-sxm-80gb --gpus 64
# Files of yours: docker run --rm -v "$PWD:/data" foldwise predict run.json. Scripts are not imported here: the sandbox that
# evaluates them needs user namespaces, which docker forbids (--privileged allows them).
FROM debian:12 AS build
COPY . /foldwise
WORKDIR /foldwise
RUN ./foldwise calibrate --help && cmake --install build/release --prefix /opt/foldwise --component Unspecified

FROM debian:12-slim
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends bubblewrap libboost-iostreams1.74.0 libfmt9 libmimalloc2.0 \
    libsqlite3-0 libtbb12 libyaml-cpp0.7 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/foldwise /usr/local
WORKDIR /data
ENTRYPOINT ["foldwise"]
