"""What the routes' parameters have in common."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Query

from controller.service.http import Needs
from controller.service.keys import ApiKey

Reader = Annotated[ApiKey, Depends(Needs("read"))]
Submitter = Annotated[ApiKey, Depends(Needs("submit"))]
Admin = Annotated[ApiKey, Depends(Needs("admin"))]
Limit = Annotated[int, Query(ge=1, le=100, description="Entries on the page.")]
After = Annotated[str | None, Query(description="Go on after the entry of this id.")]
IdempotencyKey = Annotated[
    str | None,
    Header(description="The same key again gives the first answer and changes nothing."),
]
