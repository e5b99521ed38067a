# docker build -t mtn .
# docker run -p 8000:8000 -v ./my-model:/model -v ./tokens:/run/secrets/tokens:ro mtn
FROM python:3.11-slim
ARG EXTRAS=serve
COPY . /source
RUN pip install --no-cache-dir --constraint /source/constraints.txt "/source[$EXTRAS]" && rm -r /source \
    && useradd --uid 10001 --no-create-home mtn
USER mtn
VOLUME /model
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/readyz', timeout=5)"]
CMD ["mtn", "serve", "/model", "--host", "0.0.0.0", "--token-file", "/run/secrets/tokens"]
