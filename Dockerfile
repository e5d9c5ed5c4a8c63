# docker build -t histodict .
# docker run --rm -v "$PWD:/data" histodict train /data/tissue --output /data/tissue.histodict
# docker run --rm -p 127.0.0.1:8642:8642 -v "$PWD:/data" histodict serve /data/tissue --host 0.0.0.0 --workspace /data/page
# (the page asks for the token that the command prints)
FROM python:3.13-slim
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt ".[networks,web,features,ome]" && rm -rf /src
RUN useradd --create-home histodict
USER histodict
WORKDIR /data
ENTRYPOINT ["histodict"]
CMD ["--help"]
