"""The REST API as an ASGI app over the parts of the service.

Shapes follow OpenAI's fine-tuning jobs (``rlhfless.rest``). Each route but the health checks needs
a key; what a key sees is its tenant's. The app keeps nothing between requests, so any number of
replicas serve the same jobs.
"""

from __future__ import annotations

from fastapi import FastAPI

from controller.service.body_limit import BodyLimit
from controller.service.edge import Edge
from controller.service.http import answer_with_problems
from controller.service.openapi import Api
from controller.service.routes import (
    audit,
    checkpoints,
    docs,
    estimates,
    events,
    files,
    health,
    jobs,
    keys,
    logs,
    metrics,
    models,
    outputs,
    page,
    rewards,
    tenant,
)
from controller.service.service import Service
from rlhfless import __version__

ROUTES = (
    health.router,
    jobs.router,
    events.router,
    outputs.router,
    checkpoints.router,
    logs.router,
    files.router,
    models.router,
    estimates.router,
    rewards.router,
    page.router,
    keys.router,
    tenant.router,
    audit.router,
    metrics.router,
    docs.router,
)


def create_app(service: Service) -> FastAPI:
    """The app of a replica."""
    app = Api(title="rlhfless", version=__version__, docs_url=None, redoc_url=None)
    app.state.keys, app.state.guard = service.keys, service.guard
    answer_with_problems(app)
    settings = service.settings
    uploads = {"/v1/files": settings.max_file_bytes + settings.max_body_bytes}
    limit = BodyLimit(settings.max_body_bytes, uploads)
    app.add_middleware(Edge, audit=service.audit, metrics=service.metrics, limit=limit)
    for router in ROUTES:
        app.include_router(router(service))
    return app
