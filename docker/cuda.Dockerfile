# The CUDA server: docker build -f docker/cuda.Dockerfile -t bertopt-cuda .
#                  docker run --gpus all -p 8000:8000 -v "$PWD/bundle:/bundle:ro" bertopt-cuda
# A plan runs with the very version of TensorRT that built it: --build-arg TENSORRT=10.3.0 for another.
FROM nvidia/cuda:12.6.3-devel-ubuntu22.04

ARG TENSORRT=8.6.0
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-dev python3-pip g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY pyproject.toml README.md ./
COPY bertopt bertopt
# Python 3.10, for which TensorRT 8.6 is published; pycuda is compiled here
RUN pip3 install --no-cache-dir "tensorrt==${TENSORRT}" pycuda nvidia-ml-py '.[serve]'

RUN useradd --create-home bertopt
USER bertopt
ENV BERTOPT_CACHE=/tmp/bertopt
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=120s CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz')"]
ENTRYPOINT ["bertopt", "serve", "/bundle", "--host", "0.0.0.0"]
