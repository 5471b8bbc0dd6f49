# The CPU server: docker build -f docker/cpu.Dockerfile -t bertopt-cpu .
#                 docker run -p 8000:8000 -v "$PWD/bundle:/bundle:ro" bertopt-cpu
FROM python:3.11-slim

WORKDIR /app
COPY pyproject.toml constraints.txt README.md ./
COPY bertopt bertopt
# ONNX Runtime and OpenVINO without PyTorch: a bundle needs it only for a rung that runs it
RUN pip install --no-cache-dir -c constraints.txt onnxruntime openvino '.[serve]'

RUN useradd --create-home bertopt
USER bertopt
ENV BERTOPT_CACHE=/tmp/bertopt
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz')"]
ENTRYPOINT ["bertopt", "serve", "/bundle", "--host", "0.0.0.0"]
