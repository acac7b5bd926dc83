"""The peer: a FastAPI app with one empty route, served by uvicorn with its defaults.

python -m benchmarks.load.empty PORT
"""

from __future__ import annotations

import asyncio
import sys

import uvicorn
from fastapi import FastAPI

app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)


@app.get("/")
async def empty() -> None:
    """Nothing to look up, nothing to tell."""


def main() -> None:
    config = uvicorn.Config(
        app,
        port=int(sys.argv[1]),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
    )
    # As the replica: on the loop of asyncio.run, whatever uvicorn would choose by itself.
    asyncio.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main()
